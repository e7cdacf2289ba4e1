"""One model behind a step loop: what is asked, what runs next, and the tensors that run it."""
