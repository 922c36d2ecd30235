"""Hidden states of a target model, for every token of a corpus, as a verified EAGLE-3 training set."""

__version__ = "0.1.0"
