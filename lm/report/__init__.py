"""Report of runs: one HTML file with verdict, scores, curves, samples, settings and commands."""
