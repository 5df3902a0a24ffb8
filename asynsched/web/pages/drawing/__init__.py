"""Charts as SVG or HTML, drawn by the server: pure functions of what they show."""
