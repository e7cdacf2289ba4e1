"""How bodies become prompts: small ones here, large ones and chats in processes whose memory and time are bounded.

`inputs` says what each kind of body has for the model, `reader` decides where the work runs; `processes` and `client`
are this process's end of the others, `child` is their program, and `messages` cross between them.
"""
