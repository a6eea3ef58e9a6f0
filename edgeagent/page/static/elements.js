// Making and changing elements. Text that comes from other devices reaches the page here, and only
// as text: nothing on this page reads text as HTML (and the browser is told to refuse that).

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A new element; `children` are elements or texts. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** A new element of a picture. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A name that another device has chosen: its direction of writing stays its own matter. */
export function named(text) {
  return el("bdi", {}, text);
}

/** Change a text only if it differs, so that screen readers do not read it again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show or hide an element. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Let the children of `parent` stand for `items`, in this order. A child stays the same element as
 * long as its item's key does, so that it keeps the keyboard's focus. Two items may have one key.
 */
export function keyed(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const times = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const count = (times.get(key) ?? 0) + 1;
    times.set(key, count);
    const unique = `${count}:${key}`;
    let child = known.get(unique);
    if (child) known.delete(unique);
    else {
      child = create(item);
      child.dataset.key = unique;
    }
    if (child !== place) parent.insertBefore(child, place);
    else place = place.nextElementSibling;
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}
