"use strict";

const root = document.documentElement;
const button = document.getElementById("theme");
const night = matchMedia("(prefers-color-scheme: dark)");

function dark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : night.matches;
}

function name() {
  button.textContent = dark() ? "Light colours" : "Dark colours";
}

button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  name();
});
night.addEventListener("change", name);
name();

// Interpret expressions (ast) instead of compiling them: the page's policy forbids eval.
const how = { actions: false, renderer: "svg", ast: true, mode: "vega-lite" };

// On a narrow screen, put panels below each other and limit their width, so that text stays readable.
const narrow = matchMedia("(max-width: 699px)").matches;

function stacked(spec) {
  if (spec.columns) {
    spec.columns = 1;
  }
  if (spec.width > 270) {
    spec.width = 270;
  }
  if (spec.facet?.column && !spec.facet.row) {
    spec.facet = spec.facet.column;
    spec.columns = 1;
  }
  [spec.concat, spec.vconcat, spec.layer, spec.spec].flat().filter(Boolean).forEach(stacked);
  return spec;
}

// Let the buttons of a legend highlight their lines, one at a time.
function connect(buttons, view) {
  for (const each of buttons) {
    each.addEventListener("click", () => {
      const on = each.getAttribute("aria-pressed") !== "true";
      buttons.forEach((other) => other.setAttribute("aria-pressed", on && other === each));
      view.signal("highlight", on ? each.textContent : null).runAsync();
    });
  }
}

// Say which tables scroll sideways, and fade the edge beyond which there is more.
function cue(table) {
  const hidden = table.scrollWidth - table.clientWidth;
  table.classList.toggle("scrolls", hidden > 1);
  table.classList.toggle("more", hidden - table.scrollLeft > 1);
}

const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => cue(target)));

async function embed(place) {
  place.dataset.drawn = "";
  try {
    const spec = JSON.parse(place.nextElementSibling.textContent);
    const { view } = await vegaEmbed(place, narrow ? stacked(spec) : spec, how);
    connect(place.parentElement.querySelectorAll(".legend button"), view);
  } catch (error) {
    console.error(error);
    place.textContent = "This chart could not be drawn; see the text below.";
  }
}

function draw(within) {
  const places = [...within.querySelectorAll(".chart:not([data-drawn])")];
  return Promise.all(places.filter((place) => !place.closest("details:not([open])")).map(embed));
}

async function show(main) {
  for (const run of main.querySelectorAll("details.run")) {
    run.addEventListener("toggle", () => draw(run));
  }
  for (const table of main.querySelectorAll(".wide")) {
    table.addEventListener("scroll", () => cue(table), { passive: true });
    sizes.observe(table);
  }
  await draw(main);
}

const live = document.getElementById("live");

// Draw the new page hidden and swap it in when it is ready, so that nothing moves.
async function renew() {
  const page = new DOMParser().parseFromString(await (await fetch(".")).text(), "text/html");
  const old = document.querySelector("main");
  const fresh = document.adoptNode(page.querySelector("main"));
  for (const each of fresh.querySelectorAll("details[id]")) {
    each.open = document.getElementById(each.id)?.open ?? false;
  }
  fresh.hidden = true;
  old.after(fresh);
  await show(fresh);
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const { scrollX, scrollY } = window;
  old.remove();
  fresh.hidden = false;
  scrollTo(scrollX, scrollY);
  if (focused) {
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
  live.textContent = page.getElementById("live").textContent;
  return live.dataset.state = page.getElementById("live").dataset.state;
}

async function follow() {
  let seen = live.dataset.state;
  for (;;) {
    await new Promise((done) => setTimeout(done, 1500));
    try {
      const { state } = await (await fetch("state")).json();
      if (state !== seen) {
        seen = await renew();
      }
    } catch {
      live.textContent = "The server has stopped; this page shows the last state.";
    }
  }
}

show(document.querySelector("main")).then(() => {
  root.dataset.ready = "";
  if (live) {
    follow();
  }
});
