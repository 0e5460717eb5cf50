"""The gateway of Universal Agent over HTTP and WebSockets, under `/gateway`; the words are the facade's protocol."""
