// What is known about one span. Everything goes into the page as text, never as HTML.

function fill(model, el) {
  const facts = model.get("facts");
  el.hidden = !facts;
  if (!facts) return el.replaceChildren();
  const button = (message, attributes, label) =>
    h("button", { type: "button", onclick: () => model.send(message), ...attributes }, label);
  const head = h("div", { class: "head" }, h("strong", {}, facts.title),
    button({ do: "clear" }, { "aria-label": "Close the details" }, "×"), h("span", {}, facts.subtitle));
  const links = h("ul", { "aria-label": "Related spans" }, ...facts.related.map(([relation, label, span]) =>
    h("li", {}, `${relation}: `, button({ do: "select", span }, {}, label))));
  const rows = facts.columns.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)));
  const every = h("details", { open: true }, h("summary", {}, "All columns"), h("table", {}, h("tbody", {}, ...rows)));
  el.replaceChildren(head, h("p", { class: "why" }, facts.why), ...(facts.related.length ? [links] : []), every);
}

function render({ model, el }) {
  el.classList.add("gpuscope-details");
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "Details of the selected span");
  return watch(model, ["facts"], () => {
    const was = el.hidden;
    fill(model, el);
    if (was && !el.hidden) el.scrollIntoView({ block: "nearest" });
  });
}

export default { render };
