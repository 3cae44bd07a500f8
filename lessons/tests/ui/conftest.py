"""The JupyterLab and the browser that gpuscope's own tests have."""

from lab_fixtures import browser_page, lab, lab_of_ours, server

__all__ = ["browser_page", "lab", "lab_of_ours", "server"]
