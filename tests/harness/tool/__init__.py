"""Programs that tests need: a JDK, Debian packages, the checkers of `deploy/`."""
