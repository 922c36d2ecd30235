"""The SGLang server: what it must be, who holds it, how it is started, proved and stopped."""
