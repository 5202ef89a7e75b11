"""The report of a results folder, as HTML and Markdown."""
