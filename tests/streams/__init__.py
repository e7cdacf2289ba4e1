"""Gateway and model server together, over what breaks between them."""
