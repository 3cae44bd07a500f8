import sys
import gpuscope as gs
from gpuscope.workloads.spin import Spin
from gpuscope.workloads import spin as module
gpu=gs.open_device("cuda:0",quiet=True)
LONG,SHORT=4_000_000,1_000_000
with gpu.create_stream(name="long") as long, gpu.create_stream(name="short") as short:
    for holds in (True, False):
        slow=Spin(gpu,duration_ns=LONG,name="slow");fast=Spin(gpu,duration_ns=SHORT,name="fast")
        if not holds:
            for s in (slow, fast): s._kernel = gpu.compile(module.SOURCE, "spin_kernel", model=module.MODEL)
        def step():
            fast.execute(stream=short); slow.execute(stream=long); short.wait(long.record()); fast.execute(stream=short); short.synchronize()
        step()
        with gs.profile(gpu) as r: step()
        print(holds, [(c.change,c.gain_ns) for c in gs.analysis.what_would_help(r.trace).changes])
        k=r.trace.where(kind="kernel").spans.to_pylist(); t=min(s["start_ns"] for s in k)
        print([(s["name"],s["start_ns"]-t,s["end_ns"]-t) for s in k])
        print([(p.kind if hasattr(p,'kind') else p, p.duration_ns) for p in gs.analysis.critical_path(r.trace).parts])
