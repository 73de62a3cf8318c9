"""A server of one model with OpenAI's interface for chats and completions; needs the extra `amk[serve]`."""
