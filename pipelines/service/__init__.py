"""The HTTP service: a Ray Serve application over a finished workspace, with a search page for people.

config     settings of the section `serve`
schemas    what requests and answers look like
live       the searcher that is live, and switching to a new one
engine     work on batches of requests, without HTTP
api        the FastAPI application: routes, reasons for refusals, the page
limits     body size, waiting room, API key
metrics    Prometheus
deploy     Ray Serve: gateway and engine replicas
page/      the search page, plain files
"""
