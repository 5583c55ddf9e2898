"""Tables and pictures of the pages, drawn from results/*.json."""
