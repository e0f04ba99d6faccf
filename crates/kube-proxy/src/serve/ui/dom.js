// Elements, and how those on the page become those that are wanted. What the API says gets in as text
// nodes and attribute values only, never as markup.

/** An element. `vars` are CSS variables; attributes that are false, null or undefined are left out. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name === 'vars') {
      for (const [property, is] of Object.entries(value)) element.style.setProperty(property, is);
    } else {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  element.append(...nodes(children));
  return element;
}

/** Flat, without what is absent; all that is no node becomes text. */
function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== false && child !== null && child !== undefined && child !== '')
    .map((child) => (child instanceof Node ? child : String(child)));
}

/**
 * Makes the children of `parent` what is wanted, and keeps the elements that are the same: what has
 * the focus, is selected or opened stays so. Elements with a `data-key` are found again by it.
 */
export function show(parent, ...children) {
  const focused = document.activeElement;
  const wanted = h('div', null, ...children);
  patch(parent, [...wanted.childNodes]);
  // An element that was moved has lost it.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus();
}

function patch(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) {
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  }
  let at = parent.firstChild;
  for (const next of wanted) {
    const key = next.dataset?.key;
    const candidate = key === undefined ? at : keyed.get(key);
    if (candidate && isSame(candidate, next)) {
      keyed.delete(key);
      if (candidate === at) at = at.nextSibling;
      else parent.insertBefore(candidate, at);
      update(candidate, next);
    } else {
      parent.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function isSame(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

function update(element, wanted) {
  if (element.nodeType === Node.TEXT_NODE) {
    if (element.data !== wanted.data) element.data = wanted.data;
    return;
  }
  for (const { name } of [...element.attributes]) {
    // What a person has opened stays open.
    const isKept = name === 'open' || (name === 'style' && wanted.style.length > 0);
    if (!isKept && !wanted.hasAttribute(name)) element.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === 'style') {
      // Not as an attribute: the page's policy lets scripts set properties only.
      for (const property of wanted.style) {
        element.style.setProperty(property, wanted.style.getPropertyValue(property));
      }
    } else if (name !== 'open' && element.getAttribute(name) !== value) {
      element.setAttribute(name, value);
    }
  }
  patch(element, [...wanted.childNodes]);
}

/**
 * A table, which narrow windows show as a list. `columns` are `{title, number}`, `rows` are `{key,
 * cells, tone}`, where a cell is text, an element or several.
 */
export function table(caption, columns, rows) {
  const heading = ({ title, number }) =>
    h('th', { scope: 'col', role: 'columnheader', class: number && 'number' }, title);
  const cell = (content, column) => {
    const isEmpty = content === '' || content === undefined || content === null || content === false;
    const kind = [column.number && 'number', column.wide && 'wide', isEmpty && 'empty'];
    return h(
      'td',
      { role: 'cell', 'data-title': column.title, class: kind.filter(Boolean).join(' ') || null },
      content,
    );
  };
  const row = ({ key, cells, tone }) =>
    h(
      'tr',
      { role: 'row', 'data-key': key, class: tone },
      cells.map((content, at) => cell(content, columns[at])),
    );
  const drawn = h(
    'table',
    { role: 'table' },
    h('caption', null, caption),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, columns.map(heading))),
    h('tbody', { role: 'rowgroup' }, rows.map(row)),
  );
  return h('div', { class: 'scroll', 'data-key': `table ${caption}` }, drawn);
}

/** A part of a view, with its heading; nothing where there is nothing in it. */
export function section(title, ...content) {
  if (nodes(content).length === 0) return null;
  return h('section', { 'data-key': `section ${title}` }, h('h2', null, title), content);
}

/** A word with a sign and a colour: neither says anything that the word does not. */
export function state(tone, word) {
  const sign = { good: '●', busy: '◐', warn: '▲', bad: '■', off: '○' }[tone];
  return h('span', { class: `state ${tone}` }, h('span', { 'aria-hidden': 'true' }, `${sign} `), word);
}

/** Terms and what they are; those that are absent are left out. */
export function terms(...pairs) {
  const given = pairs.filter(([, is]) => is !== null && is !== undefined && is !== '');
  return h('dl', null, given.map(([term, is]) => h('div', null, h('dt', null, term), h('dd', null, is))));
}

/** Notes, as the API gives them. */
export function notes(texts) {
  if (!texts?.length) return null;
  return h('ul', { class: 'notes', 'data-key': 'notes' }, texts.map((text) => h('li', null, text)));
}
