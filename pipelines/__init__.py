"""The stages on Ray, tracking and registry, the command line. The only room that imports ray and mlflow."""
