"""The SGLang plug-in that captures hidden states inside the server. Switched on by ``SGLANG_HS_DUMP_DIR``."""

PLUGIN_FORMAT_VERSION = 1
"""Raised whenever the states that the plug-in writes for the same model and settings change; in the fingerprint."""
