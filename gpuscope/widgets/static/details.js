// What is known about one span or stretch of time. Everything goes into the page as text, never as HTML.

function fill(model, el) {
  const facts = model.get("facts");
  el.hidden = !facts;
  if (!facts) return el.replaceChildren();
  const button = (message, attributes, label) =>
    h("button", { onclick: () => model.send(message), ...attributes }, label);
  const table = (rows) => h("table", {}, h("tbody", {}, ...rows.map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, ...[name].flat()), h("td", {}, value)))));
  const piece = (name, colour, pattern, style) => {
    const made = h("span", { class: name });
    const background = pattern ? `url(${patternCell({ fill: colour, pattern }, LOOKS.tint).toDataURL()})` : colour;
    Object.assign(made.style, { background, borderColor: colour, ...style });
    return made;
  };
  const head = h("div", { class: "head" }, h("strong", {}, facts.title),
    button({ do: "clear" }, { "aria-label": "Close the details" }, "×"), h("span", {}, facts.subtitle));
  const links = h("ul", { "aria-label": "Related spans" }, ...facts.related.map(([relation, label, span]) =>
    h("li", {}, `${relation}: `, button({ do: "select", span }, {}, label))));
  const parts = table([
    ...facts.parts.map(([words, time, , colour, pattern]) => [[piece("swatch", colour, pattern), words], time]),
    [`sum${facts.of && ` of ${facts.of}`}, in µs`, facts.total]]);
  const bar = h("div", { class: "parts", role: "img", "aria-label": "The parts in order" },
    ...facts.parts.map(([, , share, colour, pattern]) => piece("", colour, pattern, { flexGrow: share })));
  const old = el.querySelector("summary"); // more facts follow, and it stays open and focused
  const [isOpen, hasFocus] = [old?.parentNode.open ?? false, old && focused(el) === old];
  const every = h("details", { open: isOpen }, h("summary", {}, "All columns"), table(facts.columns));
  const tables = facts.tables.map(([title, rows]) => h("div", {}, h("strong", {}, title), table(rows)));
  const [known, sum, why] = [h("div", {}, head), h("div", { class: "sum" }, ...(facts.of ? [h("strong", {}, facts.of)] : []), bar, parts), h("p", { class: "why" }, facts.why)];
  if (facts.related.length) known.append(links);
  if (facts.columns.length) known.append(every);
  el.replaceChildren(known, ...(facts.parts.length ? [sum] : []), ...tables, ...(facts.why ? [why] : []));
  if (hasFocus) el.querySelector("summary")?.focus({ preventScroll: true });
}

function render({ model, el }) {
  el.classList.add("gpuscope-details");
  put(el, "role", "region");
  put(el, "aria-label", "Details of the selected span");
  return watch(model, () => fill(model, el), "facts");
}

export default { render };
