"""JupyterHub on one machine, to try a class before it: any name, one password.

    pip install jupyterhub nbgitpuller '.[full]' ./lessons
    npm install -g configurable-http-proxy
    CLASS_PASSWORD=... jupyterhub -f classroom/jupyterhub_config.py

Every server is a process of yours, with your rights: on localhost only. For a real class see
docs/howto/class_on_a_hub.md.
"""

import os

c = get_config()  # noqa: F821 - JupyterHub's

c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ["CLASS_PASSWORD"]
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"  # no Unix account for each learner
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = c.Spawner.http_timeout = 180  # s; many start at once
c.Spawner.environment = {"CUDA_VISIBLE_DEVICES": ""}  # all on the simulated GPU
