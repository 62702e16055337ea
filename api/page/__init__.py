"""The page at `/`: what a person sees and does in a browser.

Server-rendered from the database alone, under the same tenants and scopes as /v1. A view is a module in
`views/` and a template; `view.py` says what it consists of, `routes.py` does the rest for all of them.
"""
