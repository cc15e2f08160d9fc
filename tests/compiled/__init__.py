"""The compiled build, as another twin: compiled modules must pass the tests of their source."""
