"""The compiled build, one more twin: what is compiled is held to the tests of its source."""
