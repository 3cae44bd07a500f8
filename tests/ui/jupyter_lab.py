"""A JupyterLab of its own and a headless browser: for the tests marked `ui`, and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_S = 240
"""How long a page waits for one thing: several times what a whole test takes."""
VIEWPORT = {"width": 1280, "height": 1000}
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false"},  # no pop-up
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page
}
IDLE = """() => {
    const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.status === 'idle';
}"""
"""For ``page.wait_for_function``: the notebook's kernel is there and idle."""
# With callbacks in a thread of their own, the kernel says that it is idle while a cell runs.
BUSY = """() => [...document.querySelectorAll('.jp-InputPrompt')]
    .some(one => one.innerText.includes('*'))"""
"""Whether a cell runs."""
_ASK = """async code => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const future = kernel.requestExecute({ code, store_history: false });
    let said = '';
    future.onIOPub = message => {
        said += message.content?.text ?? message.content?.traceback?.join('\\n') ?? '';
    };
    await future.done;
    return said;
}"""
_CLASSES = {"jupyterlab": "LabApp", "notebook": "JupyterNotebookApp"}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab, and a folder of notebooks that it shows."""

    url: str
    token: str
    folder: Path
    within: str = ""
    """The folder's path in the one that the server shows."""
    app: str = "jupyterlab"

    def page(self, notebook: str) -> str:
        workspace = secrets.token_hex(4)
        view = f"lab/workspaces/{workspace}/tree" if self.app == "jupyterlab" else "notebooks"
        return f"{self.url}/{view}/{self.within}{notebook}?token={self.token}"

    def subfolder(self, name: str) -> Lab:
        """Make a folder in this one, and return it with its server."""
        folder = self.folder / name
        folder.mkdir()
        return replace(self, folder=folder, within=f"{self.within}{name}/")

    def end_kernels(self) -> None:
        """End every notebook's kernel."""
        for session in json.loads(self._ask("GET", "")):
            self._ask("DELETE", f"/{session['id']}")

    def _ask(self, method: str, path: str) -> bytes:
        address = f"{self.url}/api/sessions{path}?token={self.token}"
        request = urllib.request.Request(address, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            return bytes(answer.read())


@contextlib.contextmanager
def running_lab(tmp_path: Path, notebooks: Path, app: str = "jupyterlab") -> Iterator[Lab]:
    """JupyterLab on a free port of this machine, with none of the user's own settings.

    Parameters
    ----------
    tmp_path
        Where its settings and its log go.
    notebooks
        The folder it shows.
    app
        ``"jupyterlab"``, or ``"notebook"`` for Jupyter Notebook.
    """
    for plugin, values in SETTINGS.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    own = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    command = [
        sys.executable, "-m", app, "--no-browser", "--allow-root",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={notebooks}",
        f"--LabServerApp.user_settings_dir={tmp_path / 'settings'}",
        f"--LabServerApp.workspaces_dir={tmp_path / 'workspaces'}",
        f"--{_CLASSES[app]}.expose_app_in_browser=True",
        # Without a language server or a look for updates, nothing reaches out.
        *(["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
          if app == "jupyterlab" else []),
    ]  # fmt: skip
    log = tmp_path / "lab.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=notebooks, env={**os.environ, **own}
        )
    lab = Lab(f"http://127.0.0.1:{port}", token, notebooks, app=app)
    try:
        _wait_until_up(lab, process, log)
        yield lab
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(page: Any, code: str) -> str:
    """Run code in the kernel, beside the notebook; returns what it printed."""
    return str(page.evaluate(_ASK, code)).strip()


def eventually(check: Callable[[], None]) -> None:
    """Try an assertion again until it holds, for what ``expect`` cannot wait for."""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            check()
        except AssertionError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)
        else:
            return


def sizes_of_messages(page: Any) -> list[int]:
    """Return a list that gets the bytes of each message to a page, of its widgets' scripts aside."""
    sizes: list[int] = []

    def hear(data: str | bytes) -> None:
        data = data.encode() if isinstance(data, str) else data
        if b"_esm" not in data:
            sizes.append(len(data))

    page.on("websocket", lambda socket: socket.on("framereceived", hear))
    return sizes


def check_accessibility(page: Any, room: str) -> None:
    """Assert that axe finds nothing in a part of the page."""
    from axe_playwright_python.sync_playwright import Axe

    bad = [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:200]}"
        for one in Axe().run(page, context=room).response["violations"]
        for node in one["nodes"]
    ]
    assert not bad, "\n".join(bad)


def walk(page: Any, room: str) -> list[str]:
    """Go through a part of the page by Tab; returns what had the focus, each seen to have it."""
    page.locator(f"{room} :is(button, input, summary):visible").first.focus()
    reached: list[str] = []
    while not reached or reached[-1] != _OUTSIDE:
        reached.append(page.evaluate(_FOCUS, [room, _OUTSIDE]))
        page.keyboard.press("Tab")
    assert not [one for one in reached if one.endswith(_UNSEEN)], reached
    return reached[:-1]


_OUTSIDE, _UNSEEN = "outside", " (no outline of 2 px)"
_FOCUS = f"""([room, outside]) => {{
    const now = document.activeElement, around = now.closest('label, .gs-file') ?? now;
    if (!now.closest(room)) return outside;
    const wide = Math.max(...[now, around].map(getComputedStyle).map(
        style => style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)));
    return (now.getAttribute('aria-label') ?? now.innerText) + (wide < 2 ? '{_UNSEEN}' : '');
}}"""


def _wait_until_up(lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(f"{lab.url}/api?token={lab.token}", timeout=PATIENCE_S):  # noqa: S310
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def open_in_tab(page: Any, lab: Lab, notebook: str) -> None:
    """Open a notebook in a page that has loaded this JupyterLab, and wait for its kernel."""
    page.evaluate(_OPEN, f"{lab.within}{notebook}")
    page.wait_for_function(IDLE)


def leave_tab(page: Any) -> None:
    """Close all that is open in a page of JupyterLab, saved or not."""
    page.evaluate(_CLOSE_ALL)


def choose_theme(page: Any, theme: str) -> None:
    """Show JupyterLab in ``"Light"`` or ``"Dark"``."""
    page.evaluate(_THEME, f"JupyterLab {theme}")


_OPEN = """async path => {
    const { commands, shell } = window.jupyterapp;
    await commands.execute('docmanager:open', { path, factory: 'Notebook' });
    shell.collapseLeft();
}"""
_CLOSE_ALL = "() => [...window.jupyterapp.shell.widgets('main')].forEach(one => one.dispose())"
_THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', { theme });
}"""


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium or Chrome, headless.

    A wait of a page, or of ``expect``, ends after :data:`WAIT_S`.
    """
    from playwright.sync_api import expect, sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        raise RuntimeError("this needs Chromium or Chrome on PATH: scripts/chromium.sh")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=list(FLAGS))
        expect.set_options(timeout=WAIT_S * 1000)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_context(browser: Any) -> Iterator[Any]:
    """A Playwright context of a browser, for pages of :data:`VIEWPORT`."""
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(WAIT_S * 1000)
    yield context
    context.close()
