// The script of a timeline's plot: it fetches Plotly's, and keeps what the kernel says meanwhile. anywidget
// gives a script two seconds; the widget of a later one hears nothing, ever. To read Plotly takes a busy
// machine longer than that.

const TOLD = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps", "removeTraceProps"]
  .map((what) => `_py2js_${what}`);

async function load(script) {
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  try {
    return await import(address);
  } finally {
    URL.revokeObjectURL(address);
  }
}

// Return Plotly's widget of a model: it has heard what its model was told since it was made.
async function widgetOf(model) {
  const acts = {};
  let missed = [];
  const notes = TOLD.map((name) => [`change:${name}`, () => model.get(name) && missed.push([name, model.get(name)])]);
  // Whole traces supersede what was told of traces; the layout comes before them.
  notes.push(["change:_widget_data", () => (missed = missed.filter(([name]) => name === "_py2js_relayout"))]);
  for (const [event, act] of notes) model.on(event, act);
  let make;
  try {
    ({ default: make } = await load(model.get("_plotly_script")));
  } finally {
    for (const [event, act] of notes) model.off(event, act);
  }
  const widget = make();
  let [now, message] = ["", null];
  widget.initialize({
    model: {
      get: (name) => (name === now ? message : model.get(name)),
      set: (name, value) => model.set(name, value),
      save_changes: () => model.save_changes(),
      on: (event, act) => {
        (acts[event] ??= []).push(act);
        model.on(event, act);
      },
    },
  });
  for ([now, message] of missed) for (const act of acts[`change:${now}`] ?? []) act();
  now = "";
  return widget;
}

export default () => {
  let widget;
  return {
    initialize({ model }) {
      widget = widgetOf(model); // not awaited: that is the point
    },
    async render(view) {
      const end = await (await widget).render(view);
      let width = view.el.clientWidth;
      const sizes = new ResizeObserver(() => {
        if (view.el.clientWidth === width) return;
        width = view.el.clientWidth;
        window.dispatchEvent(new Event("resize")); // Plotly listens to that
      });
      sizes.observe(view.el);
      return () => {
        sizes.disconnect();
        end?.();
      };
    },
  };
};
