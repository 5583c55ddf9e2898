// Draws one step of a reply: its distribution by component, and the candidates of the beam. Text becomes text
// nodes only, so nothing that a model or a user says is markup.

const COLOURS = 7; // further components share the last colour
const FATES = {
  kept: ["●", "kept"],
  ended: ["■", "ended here"],
  dropped: ["○", "dropped"],
};

/** An element with attributes and children; strings become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

function nats(value) {
  return value.toFixed(2).replace("-", "−");
}

export function percent(share) {
  if (share >= 0.0995) return `${(100 * share).toFixed(0)} %`;
  if (share >= 0.00095) return `${(100 * share).toFixed(1)} %`;
  return share > 0 ? "< 0.1 %" : "0 %";
}

/** The colour of each component: the ones that give most have colours of their own in the whole reply. */
export function palette(steps) {
  const count = steps[0].prior.length;
  const mass = Array.from({ length: count }, (_, k) => steps.reduce((sum, step) => sum + step.prior[k], 0));
  const ranked = [...mass.keys()].sort((a, b) => mass[b] - mass[a]);
  const own = new Set(ranked.slice(0, count > COLOURS + 1 ? COLOURS : COLOURS + 1));
  const colours = new Array(count).fill(COLOURS);
  let next = 0;
  for (let k = 0; k < count; k += 1) if (own.has(k)) colours[k] = next++;
  return colours;
}

/** Shares by colour: [colour, share, components], with the components of the last colour together. */
function byColour(shares, colours) {
  const found = new Map();
  shares.forEach((share, k) => {
    const entry = found.get(colours[k]) ?? [colours[k], 0, []];
    entry[1] += share;
    entry[2].push(k + 1);
    found.set(colours[k], entry);
  });
  return [...found.values()].sort((a, b) => a[0] - b[0]);
}

function named(components) {
  return components.length > 1 ? `${components.length} others` : `component ${components[0]}`;
}

function bar(shares, colours, scale) {
  const parts = byColour(shares, colours).filter(([, share]) => share > 0);
  const total = parts.reduce((sum, [, share]) => sum + share, 0);
  const element = make("span", { class: "bar", "aria-hidden": "true" });
  element.style.width = `${(100 * total) / scale}%`;
  for (const [colour, share, components] of parts) {
    const part = make("i", { class: `k${colour}`, title: `${named(components)}: ${percent(share)}` });
    part.style.flexGrow = String(share / total);
    element.append(part);
  }
  return element;
}

function spoken(shares, colours) {
  const parts = byColour(shares, colours);
  if (parts.length < 2) return "";
  return parts.map(([, share, components]) => `${named(components)} ${percent(share)}`).join(", ");
}

function prior(step, colours) {
  if (step.prior.length < 2) return null;
  const legend = byColour(step.prior, colours).map(([colour, share, components]) =>
    make("li", {}, make("i", { class: `k${colour}` }), `${named(components)} `, make("span", {}, percent(share))),
  );
  return make(
    "section",
    { class: "prior" },
    make("h3", {}, "Prior"),
    bar(step.prior, colours, 1),
    make("ol", { class: "legend" }, ...legend),
  );
}

function distribution(step, colours) {
  const rows = step.top.map((one) => ({ ...one, taken: one.token === step.token }));
  if (!rows.some((row) => row.taken))
    rows.push({ token: step.token, probability: step.probability, shares: step.shares, taken: true, apart: true });
  const scale = Math.max(...rows.map((row) => row.probability));
  const items = rows.map((row) => {
    const parts = spoken(row.shares, colours);
    return make(
      "li",
      { class: `${row.taken ? "taken" : ""} ${row.apart ? "apart" : ""}`, title: parts },
      make("span", { title: row.token }, row.token),
      make("span", {}, bar(row.shares, colours, scale)),
      make("span", {}, percent(row.probability), make("span", { class: "hidden" }, parts && `, of which ${parts}`)),
    );
  });
  return make(
    "section",
    {},
    make("h3", {}, step.prior.length > 1 ? "Next word, and the part of each component" : "Next word"),
    make("ol", { class: "bars" }, ...items),
  );
}

function beam(step, path) {
  if (!step.beam.length) return null;
  const items = step.beam.map((one) => {
    const [mark, name] = FATES[one.fate];
    const onPath = one.fate !== "dropped" && one.text === path;
    return make(
      "li",
      { class: `${one.fate} ${onPath ? "taken" : ""}` },
      make("span", { class: "mark", title: name }, mark, make("span", { class: "hidden" }, name)),
      make("span", {}, one.text || "(nothing)"),
      make("span", { class: "score" }, nats(one.log_prob)),
    );
  });
  return make(
    "section",
    {},
    make("h3", {}, "The beam at this word"),
    make("p", { class: "note" }, "● kept  ■ ended here  ○ dropped; log-probability in nats"),
    make("ol", { class: "list" }, ...items),
  );
}

function kept(found, choose) {
  const items = found.replies.map((reply, place) => {
    const button = make(
      "button",
      { type: "button", "aria-pressed": String(place === found.choice) },
      make("span", { class: "mark" }, `${place + 1}`),
      make("span", {}, (reply.text || "(says nothing)") + (reply.finished ? "" : " …")),
      make("span", { class: "score" }, nats(reply.score)),
    );
    button.addEventListener("click", () => choose(place));
    return make("li", {}, button);
  });
  return make(
    "section",
    {},
    make("h3", {}, "Kept at the end, with scores"),
    make("ol", { class: "list" }, ...items),
  );
}

/** Fill the inspector with step `at` of what /v1/chat/inspect found. */
export function draw(aside, found, at, { model, close, choose }) {
  const { steps } = found;
  const step = steps[at];
  const colours = palette(steps);
  const text = (from, to) => steps.slice(from, to).map((one) => one.text).join("");
  const closing = make("button", { type: "button", class: "quiet", "aria-label": "Close" }, "Close");
  closing.addEventListener("click", close);
  const heading = make(
    "h2",
    {},
    make("span", { class: "of" }, `${model}, word ${at + 1} of ${steps.length}`),
    text(0, at) + (step.text.startsWith(" ") ? " " : ""),
    make("mark", {}, step.text.trim() || (at === steps.length - 1 ? "end" : step.token)),
    make("span", { class: "after" }, text(at + 1, steps.length)),
  );
  aside.replaceChildren(
    ...[
      make("header", {}, heading, closing),
      prior(step, colours),
      distribution(step, colours),
      beam(step, text(0, at + 1).trim()),
      kept(found, choose),
    ].filter(Boolean),
  );
  aside.hidden = false;
  aside.scrollTop = 0;
  const parts = spoken(step.shares, colours);
  return `${step.token}: ${percent(step.probability)}${parts ? `, of which ${parts}` : ""}`;
}
