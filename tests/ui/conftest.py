"""A JupyterLab of its own and a browser, for tests marked `ui`."""

from lab_fixtures import browser_page, lab, lab_of_ours, server

__all__ = ["browser_page", "lab", "lab_of_ours", "server"]
