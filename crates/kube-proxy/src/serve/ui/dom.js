// Makes elements, and updates the page to match them. Text from the API becomes text nodes and
// attribute values only, never markup.

/** Makes an element. `vars` are CSS variables; attributes that are false, null or undefined are skipped. */
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

/** Returns a flat list of nodes. Absent children are skipped, and other values become text. */
function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== false && child !== null && child !== undefined && child !== '')
    .map((child) => (child instanceof Node ? child : String(child)));
}

/**
 * Replaces the children of `parent`. Elements that match stay, with their focus, selection and open
 * state. A `data-key` identifies an element.
 */
export function show(parent, ...children) {
  const focused = document.activeElement;
  const wanted = h('div', null, ...children);
  patch(parent, [...wanted.childNodes]);
  // A moved element loses the focus.
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
    // An element that a person has opened stays open.
    const isKept = name === 'open' || (name === 'style' && wanted.style.length > 0);
    if (!isKept && !wanted.hasAttribute(name)) element.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === 'style') {
      // The page's policy allows properties, but no style attribute.
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
 * Makes a table, which narrow windows show as a list. `columns` are `{title, number, optional}`, `rows`
 * are `{key, cells, tone}`. A cell is text, an element or several. An optional column is skipped if it
 * has no content in any row.
 */
export function table(caption, allColumns, allRows) {
  const isUsed = (at) => !allColumns[at].optional || allRows.some(({ cells }) => !isEmpty(cells[at]));
  const used = [...allColumns.keys()].filter(isUsed);
  const columns = used.map((at) => allColumns[at]);
  const rows = allRows.map((row) => ({ ...row, cells: used.map((at) => row.cells[at]) }));
  const heading = ({ title, number }) =>
    h('th', { scope: 'col', role: 'columnheader', class: number && 'number' }, title);
  const cell = (content, column) => {
    const kind = [column.number && 'number', column.wide && 'wide', isEmpty(content) && 'empty'];
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

function isEmpty(content) {
  return content === '' || content === undefined || content === null || content === false;
}

/** Makes a section with a heading. Without content, makes nothing. */
export function section(title, ...content) {
  if (nodes(content).length === 0) return null;
  return h('section', { 'data-key': `section ${title}` }, h('h2', null, title), content);
}

/** Makes a word with a sign and a colour. Both only repeat the word's meaning. */
export function state(tone, word) {
  const sign = { good: '●', busy: '◐', warn: '▲', bad: '■', off: '○' }[tone];
  return h('span', { class: `state ${tone}` }, h('span', { 'aria-hidden': 'true' }, `${sign} `), word);
}

/** Makes a list of terms and values; absent values are skipped. */
export function terms(...pairs) {
  const given = pairs.filter(([, is]) => is !== null && is !== undefined && is !== '');
  return h('dl', null, given.map(([term, is]) => h('div', null, h('dt', null, term), h('dd', null, is))));
}

/** Makes a list of notes of the API. */
export function notes(texts) {
  if (!texts?.length) return null;
  return h('ul', { class: 'notes', 'data-key': 'notes' }, texts.map((text) => h('li', null, text)));
}
