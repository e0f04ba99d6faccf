// Traces a packet: draws its path, step by step. The drawing is an ordered list in the order of the
// path, so that a screen reader can read it.

import { h, notes, show, state } from './dom.js';
import { ask } from './poll.js';
import { SENDERS } from './service.js';
import { api, bytes, count, counted, link, percent } from './words.js';

/** Largest number of branches that are all open at first. With more, only the first is open. */
const OPEN = 3;
/** Number of branches that are drawn at once. The rest is drawn on demand. */
const DRAWN = 20;

export const title = ({ asked }) => (asked.get('to') ? `Trace to ${asked.get('to')}` : 'Trace a packet');

/** Draws the form: destination and sender. */
export function begin(main) {
  const to = h('input', { id: 'to', autocomplete: 'off', spellcheck: 'false', placeholder: 'default/web, default/web:http, 10.96.0.1:80', required: true });
  const kind = h('select', { id: 'from' },
    Object.entries(SENDERS).map(([value, words]) => h('option', { value }, words)),
    h('option', { value: 'ip' }, 'an IP address'));
  const address = h('input', { id: 'address', autocomplete: 'off', spellcheck: 'false', placeholder: '192.0.2.7', 'aria-label': 'The sender’s IP address' });
  const form = h('form', { id: 'ask' },
    h('label', null, 'To ', to), h('label', null, 'From ', kind), address, h('button', null, 'Trace'));
  const toggle = () => {
    address.hidden = kind.value !== 'ip';
    address.required = !address.hidden;
  };
  const go = () => {
    const from = kind.value === 'ip' ? address.value.trim() : kind.value;
    if (to.value.trim() && from) location.hash = link(['explain'], { to: to.value.trim(), from });
  };
  kind.addEventListener('change', () => {
    toggle();
    if (kind.value === 'ip') address.focus();
    else go();
  });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    go();
  });
  main.replaceChildren(h('h1', null, 'Trace a packet'), form, h('div', { id: 'path' }));
}

/** Fills the form from the address of the page. */
function filled({ asked }) {
  const [to, kind, address] = ['to', 'from', 'address'].map((id) => document.getElementById(id));
  if ([to, kind, address].includes(document.activeElement)) return;
  const from = asked.get('from') || 'pod';
  if (asked.get('to')) to.value = asked.get('to');
  kind.value = Object.hasOwn(SENDERS, from) ? from : 'ip';
  address.hidden = kind.value !== 'ip';
  if (!address.hidden) address.value = from;
}

export async function load({ asked }, signal) {
  // No destination yet.
  if (!asked.get('to')) return { to: '', journeys: [] };
  return ask(api(['explain'], { to: asked.get('to'), from: asked.get('from') || 'pod' }), signal);
}

export function refused(_main, place, says) {
  filled(place);
  show(document.getElementById('path'), says);
}

export function draw(_main, place, memory) {
  filled(place);
  const { answer, all } = memory;
  const drawn = answer.journeys.map((journey, at) => one(journey, at, all));
  const none = !answer.to
    ? 'Enter a Service (default/web) or an address and port (10.96.0.1:80), and choose the sender.'
    : 'No packet to trace: no address of this Service has the sender\u2019s IP family. Choose another sender, or check the addresses of the Service.';
  show(document.getElementById('path'), notes(answer.notes), drawn.length > 0 ? drawn : h('p', { class: 'quiet', 'data-key': 'none' }, none));
}

function one(journey, at, all) {
  const heading = `${journey.from} → ${journey.to}/${journey.protocol}`;
  const tree = merged(journey.walks);
  return h('article', { 'data-key': `journey ${at} ${heading}`, 'aria-label': heading },
    h('h2', null, heading),
    h('p', { class: 'verdict' }, journey.verdict),
    h('ol', { class: 'path' },
      h('li', { class: 'sender' }, h('b', null, journey.from), h('span', { class: 'quiet' }, ' sends the first packet of a flow to '), h('code', null, `${journey.to}/${journey.protocol}`),
        journey.of ? h('span', { class: 'quiet' }, `, ${journey.of}`) : null),
      branch(tree, `${at}`, all)));
}

/** Merges paths, so that shared steps appear once. Returns `{steps, walk}` for one path, else `{steps, branches}`. */
function merged(walks, from = 0) {
  const [first] = walks;
  if (!first) return { steps: [], branches: [] };
  if (walks.length === 1) return { steps: first.steps.slice(from), walk: first };
  let at = from;
  while (walks.every((walk) => at < walk.steps.length && isSame(walk.steps[at], first.steps[at]))) at += 1;
  const steps = first.steps.slice(from, at);
  const groups = [];
  for (const walk of walks) {
    const group = groups.find(([other]) => walk.steps[at] && other.steps[at] && isSame(walk.steps[at], other.steps[at]));
    if (group) group.push(walk);
    else groups.push([walk]);
  }
  // All paths have the same steps, but different ends.
  if (groups.length === 1) return { steps, branches: walks.map((walk) => ({ steps: [], walk, chance: walk.chance })) };
  return { steps, branches: groups.map((group) => ({ ...merged(group, at), chance: group.reduce((sum, walk) => sum + walk.chance, 0) })) };
}

function isSame(one, other) {
  return one.place === other.place && one.entry === other.entry && one.says === other.says;
}

function branch(tree, key, all) {
  const drawn = tree.steps.map(step);
  if (tree.walk) return [...drawn, end(tree.walk)];
  if (tree.branches.length === 0) return drawn;
  const shown = all.has(key) ? tree.branches : tree.branches.slice(0, DRAWN);
  const isOpen = (at) => tree.branches.length <= OPEN || at === 0;
  const fan = shown.map((one, at) => h('details', { class: 'branch', open: isOpen(at), 'data-key': `${key} ${at}` },
    h('summary', { 'data-row': true },
      h('span', { class: 'chance' }, percent(one.chance)),
      h('span', { class: 'bar', 'aria-hidden': 'true', vars: { '--share': `${one.chance * 100}%` } }),
      h('span', null, leads(one))),
    h('ol', { class: 'path' }, branch(one, `${key} ${at}`, all))));
  const more = shown.length < tree.branches.length
    ? h('button', { type: 'button', 'data-all': key }, `Draw all ${counted(tree.branches.length, 'path')}`)
    : null;
  const few = tree.branches.length <= OPEN ? 'fan few' : 'fan';
  return [...drawn, h('li', { class: few }, h('p', { class: 'quiet' }, `one of ${counted(tree.branches.length, 'path')}, by probability`), h('div', { class: 'branches' }, fan, more))];
}

/** Describes the end of a branch in a few words. */
function leads(tree) {
  if (!tree.walk) return `to one of ${counted(tree.branches.length, 'path')}`;
  return tree.walk.endpoint ? `to ${tree.walk.endpoint}` : FATES[tree.walk.fate]?.[1] ?? tree.walk.fate;
}

function step({ place, entry, says, origin, members, packets, bytes: size }) {
  const counted_here = [
    packets === undefined ? null : counted(packets, 'packet'),
    size === undefined ? null : bytes(size),
  ].filter(Boolean);
  return h('li', { class: 'step' },
    h('p', { class: 'place' }, place),
    h('p', { class: 'says' }, says),
    entry ? h('p', null, h('code', null, entry)) : null,
    members?.length ? h('p', { class: 'quiet' }, 'matches ', h('code', null, members.join('; '))) : null,
    h('p', { class: 'from quiet' },
      origin ? h('span', null, `from ${origin}`) : null,
      counted_here.length > 0 ? h('span', { class: 'number' }, counted_here.join(', ')) : null));
}

const FATES = {
  delivered: ['good', 'delivered', 'the endpoint receives it'],
  refused: ['warn', 'refused', 'the sender gets an error: connection refused'],
  unrouted: ['warn', 'no route', 'this node has no route; the sender gets an error'],
  dropped: ['bad', 'dropped', 'the sender gets no answer'],
  reset: ['warn', 'reset', 'the connection is accepted and closed at once'],
  local: ['off', 'local', 'a process on this node receives it, if one listens'],
  forwarded: ['off', 'forwarded', 'it leaves this node to its destination address'],
  unknown: ['busy', 'unknown', 'a rule could not be evaluated'],
};

function end({ fate, endpoint, source, seenAs, unanswered, unsure, doubts }) {
  const [tone, word, means] = FATES[fate] ?? ['off', fate, ''];
  return h('li', { class: `end ${tone}` },
    h('p', null, state(tone, word), endpoint ? [' to ', h('code', null, endpoint)] : ` ${means}`),
    source ? h('p', { class: 'quiet' }, `source ${source}`, seenAs ? `; the endpoint sees ${seenAs}` : null) : null,
    unanswered ? h('p', null, state('bad', failure(unanswered)), `: ${unanswered}`) : null,
    unsure ? h('p', null, state('warn', 'the answer may not return'), `: ${unsure}`) : null,
    doubts?.map((doubt) => h('p', { class: 'quiet' }, `assumed: ${doubt}`)));
}

/** Returns the headline of a path that arrives without a reply of the Service. */
function failure(why) {
  if (why.includes(': redirected by ')) return 'another program redirects the packets';
  return why.startsWith('no endpoint of ') ? 'another owner has the address' : 'the answer does not return';
}
