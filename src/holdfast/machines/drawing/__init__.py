"""Pictures of machines: where each state stands, as SVG and as Mermaid."""
