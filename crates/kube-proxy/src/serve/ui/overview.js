// The state of the node. Problems come first. One line names everything without a problem.

import { h, notes, section, show, state, table, terms } from './dom.js';
import { count, counted, duration, link, moment, percent } from './words.js';

export const title = () => 'Overview';

const STATES = {
  starting: ['busy', 'starting', 'the initial Services are not programmed yet'],
  synced: ['good', 'synced', 'all Services are programmed'],
  syncing: ['busy', 'syncing', 'changes are being written'],
  failing: ['warn', 'failing', 'the kernel refused some entries; the rest is programmed'],
  stuck: ['bad', 'stuck', 'no pending change can be written'],
};

/** Returns a family and its state, in a word. */
export function standing({ family, state: is }) {
  const [tone, word] = STATES[is] ?? ['off', is];
  return h('span', { class: 'family', 'data-key': family }, `${family} `, state(tone, word));
}

export function draw(main, _place, { answer }) {
  const drawn = [
    headline(answer),
    // Reasons for not being ready, and errors of the source.
    !answer.ready && notes(answer.notes),
    section('IP families', families(answer.families)),
    section('Refused by the kernel', entries('Entries that the kernel refused at the last attempt', answer.errors)),
    section('Warnings', entries('Settings that do not fit this node, and addresses that are served with a side effect', answer.warnings)),
    section('Cannot be read', unreadable(answer.unreadable)),
    section('Addresses claimed by two Services', conflicts(answer.conflicts)),
    section('Near a limit', limits(answer.limits.filter((limit) => limit.near))),
    section('Draining', draining(answer)),
    section('Changed by others, and repaired', drift(answer.drift)),
    quiet(answer),
    section('Limits', limits(answer.limits.filter((limit) => !limit.near))),
    section('Kernel', features(answer.features)),
    answer.ready && section('Notes', notes(answer.notes)),
  ];
  show(main, drawn);
}

function headline(answer) {
  const { source } = answer;
  const began = terms(
    ['Mode', [answer.mode || 'not known yet', ...answer.forms].join(', ')],
    ['Ready', answer.ready ? state('good', 'yes') : state('busy', 'not yet')],
    ['Healthy', answer.healthy ? state('good', 'yes') : state('bad', 'no')],
    ['Services', h('a', { href: link(['services']) }, count(source.services))],
    ['EndpointSlices', count(source.endpointSlices)],
    ['Source', source.from],
    ['Running since', moment(answer.started)],
  );
  const source_notes = [
    !source.complete && 'The initial lists are not complete yet.',
    source.complete && !source.whole && 'An object could not be read, and the log names it. Nothing is removed until it can be read.',
  ].filter(Boolean);
  return [h('h1', { 'data-key': 'title' }, sentence(answer)), h('div', { 'data-key': 'began' }, began, notes(source_notes))];
}

/** Returns the state of the node in one sentence. */
export function sentence({ families: all, unreadable: parts, errors }) {
  const is = (wanted) => all.filter((family) => family.state === wanted).map((family) => family.family).join(' and ');
  if (all.length === 0) return 'kube-proxy is starting: it writes nothing before the initial lists are complete.';
  if (is('stuck')) return `${is('stuck')} is stuck: no pending change can be written.`;
  if (is('failing')) {
    const failing = all.reduce((sum, family) => sum + family.failing, 0);
    return `${is('failing')} is programmed except for ${counted(failing, 'entry', 'entries')} that the kernel refused.`;
  }
  if (parts.length > 0) return 'All Services are programmed, but parts of the kernel cannot be read.';
  if (errors.length > 0) return 'The kernel refused an entry at the last attempt.';
  if (is('starting')) return `${is('starting')} is starting.`;
  if (is('syncing')) return 'Changes are being written.';
  return 'All Services are programmed.';
}

function families(all) {
  const columns = [
    { title: 'Family' }, { title: 'State', wide: true }, { title: 'Pending', number: true }, { title: 'Failing', number: true },
    { title: 'Lag', number: true }, { title: 'Last complete', number: true },
  ];
  const row = (family) => {
    const [tone, word, means] = STATES[family.state] ?? ['off', family.state, ''];
    const stuck = family.stuckSeconds === undefined ? '' : `, for ${duration(family.stuckSeconds)}`;
    return {
      key: family.family,
      cells: [
        family.family,
        [state(tone, word), h('span', { class: 'quiet' }, ` ${means}${stuck}`)],
        count(family.pending),
        count(family.failing),
        family.lagSeconds > 0 ? duration(family.lagSeconds) : 'none',
        family.updatedSecondsAgo === undefined ? 'not yet' : `${duration(family.updatedSecondsAgo)} ago`,
      ],
    };
  };
  return table('State of each IP family', columns, all.map(row));
}

/** Returns a link to the Service of `default/web:http`. */
function service(text) {
  if (!text) return '';
  const [, namespace, name] = /^([^/]+)\/([^:]+)/.exec(text) ?? [];
  return name ? h('a', { href: link(['services', namespace, name]) }, text) : text;
}

function entries(caption, all) {
  if (all.length === 0) return null;
  const columns = [
    { title: 'Family' }, { title: 'Entry', wide: true }, { title: 'Service' }, { title: 'Reason, and what to do', wide: true },
    { title: 'Since', number: true },
  ];
  return table(caption, columns, all.map((entry) => ({
    tone: 'warn',
    cells: [entry.family, h('code', null, entry.object), service(entry.service), entry.reason, entry.seconds > 0 ? `${duration(entry.seconds)} ago` : ''],
  })));
}

function unreadable(parts) {
  if (parts.length === 0) return null;
  return table('Parts of the kernel that cannot be read', [{ title: 'Family' }, { title: 'Part' }, { title: 'Reason, and what to do', wide: true }],
    parts.map((part) => ({ tone: 'bad', cells: [part.family, part.part, part.reason] })));
}

function conflicts(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Family' }, { title: 'Address' }, { title: 'Served for' }, { title: 'Ignored for' }];
  return table('Addresses that two Services claim', columns, all.map((conflict) => ({
    cells: [conflict.family, h('code', null, conflict.address), service(conflict.winner), service(conflict.loser)],
  })));
}

function draining({ draining: all, drainingCount }) {
  if (drainingCount === 0) return null;
  const columns = [{ title: 'Endpoint' }, { title: 'Virtual server' }, { title: 'Draining for', number: true }, { title: 'Connections', number: true }];
  const rows = all.map((one) => ({
    cells: [h('code', null, one.endpoint), h('code', null, one.server), duration(one.seconds), count(one.connections)],
  }));
  const more = drainingCount > all.length ? h('p', { class: 'quiet' }, `and ${count(drainingCount - all.length)} more`) : null;
  return [table('Removed endpoints that still have connections', columns, rows), more];
}

function drift(all) {
  if (all.length === 0) return null;
  const columns = [
    { title: 'Family' }, { title: 'Kind' }, { title: 'Since the start', number: true }, { title: 'Last' }, { title: 'Last entries', wide: true },
  ];
  return table('Entries that another program changed', columns, all.map((drifted) => ({
    cells: [drifted.family, drifted.kind, count(drifted.count), moment(drifted.last), h('code', null, drifted.names.join(', '))],
  })));
}

function limits(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Resource', wide: true }, { title: 'Used', number: true }, { title: 'Limit', number: true }, { title: 'Share' }];
  return table('Use of limited resources', columns, all.map((limit) => {
    const share = limit.limit > 0 ? limit.used / limit.limit : 0;
    const bar = h('span', { class: 'bar', 'aria-hidden': 'true', vars: { '--share': `${Math.min(share, 1) * 100}%` } });
    return { key: limit.of, tone: limit.near ? 'warn' : null, cells: [limit.of, count(limit.used), count(limit.limit), [bar, percent(share)]] };
  }));
}

function features(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Feature' }, { title: 'Status' }, { title: 'Details', wide: true }];
  const sorted = [...all].sort((one, other) => Number(one.found) - Number(other.found));
  return table('Kernel features that the mode uses', columns, sorted.map((feature) => ({
    cells: [feature.name, feature.found ? state('good', 'found') : state('off', 'missing'), feature.note ?? ''],
  })));
}

/** Returns one line that names everything without a problem. */
function quiet(answer) {
  const none = [
    answer.errors.length === 0 && 'no entry is refused',
    answer.conflicts.length === 0 && 'no address is claimed twice',
    answer.drainingCount === 0 && 'no endpoint drains',
    answer.drift.length === 0 && 'no other program has changed an entry',
    answer.limits.every((limit) => !limit.near) && 'no limit is near',
  ].filter(Boolean);
  if (none.length === 0) return null;
  const text = none.join(', ');
  return h('p', { class: 'quiet', 'data-key': 'none' }, `${text[0].toUpperCase()}${text.slice(1)}.`);
}
