"""The broker: sessions, dispatch, one handler per API, and the server that connects everything."""
