"""Builds the documentation: the Sphinx extension, and the reference pages generated from code.

Each `*_reference` module returns the Markdown of one page. The extension inserts it where the page
has an empty block named `{generated}`, so that nothing generated is kept in the repository.
"""
