"""MCP servers, whose tools become ordinary ones."""
