// What is known about one span. Everything goes into the page as text, never as HTML.

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = className;
  return element;
}

function fill(model, el) {
  const facts = model.get("facts");
  el.hidden = !facts;
  if (!facts) return el.replaceChildren();
  const head = make("div", "", "head");
  const close = make("button", "×");
  close.type = "button";
  close.setAttribute("aria-label", "Close the details");
  close.addEventListener("click", () => model.send({ do: "clear" }));
  head.append(make("strong", facts.title), close, make("span", facts.subtitle));
  const why = make("p", facts.why, "why");
  const links = make("ul");
  links.setAttribute("aria-label", "Related spans");
  for (const [relation, label, span] of facts.related) {
    const go = make("button", label);
    go.type = "button";
    go.addEventListener("click", () => model.send({ do: "select", span }));
    const item = make("li", `${relation}: `);
    item.append(go);
    links.append(item);
  }
  const table = make("table");
  const body = table.createTBody();
  for (const [name, value] of facts.columns) {
    const row = body.insertRow();
    const title = make("th", name);
    title.scope = "row";
    row.append(title, make("td", value));
  }
  const every = make("details");
  every.open = true;
  every.append(make("summary", "All columns"), table);
  el.replaceChildren(head, why, ...(facts.related.length ? [links] : []), every);
}

function render({ model, el }) {
  el.classList.add("gpuscope-details");
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "Details of the selected span");
  const show = () => {
    const was = el.hidden;
    fill(model, el);
    if (was && !el.hidden) el.scrollIntoView({ block: "nearest" });
  };
  model.on("change:facts", show);
  show();
  return () => model.off("change:facts", show);
}

export default { render };
