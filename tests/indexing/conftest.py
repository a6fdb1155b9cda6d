"""Property tests here have no time limit for each example: the machine may be busy."""

from hypothesis import settings

settings.register_profile("indexing", deadline=None)
settings.load_profile("indexing")
