"""One module an API, holding its request and its response; import the modules, not this."""
