"""An HTTP server for trained models, with the API that chat clients speak."""
