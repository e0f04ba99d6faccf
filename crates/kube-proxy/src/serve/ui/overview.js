// How the node stands, and what wants somebody's attention: what is wrong comes first, and what is as it
// should be takes one line.

import { h, notes, section, show, state, table, terms } from './dom.js';
import { count, counted, duration, link, moment, percent } from './words.js';

export const title = () => 'Overview';

const STATES = {
  starting: ['busy', 'starting', 'what was first known is not in the kernel yet'],
  synced: ['good', 'synced', 'all is in the kernel'],
  syncing: ['busy', 'syncing', 'changes are on their way into the kernel'],
  failing: ['warn', 'failing', 'something was refused; all else is in the kernel'],
  stuck: ['bad', 'stuck', 'nothing that is pending can be written'],
};

/** A family and its state, in a word. */
export function standing({ family, state: is }) {
  const [tone, word] = STATES[is] ?? ['off', is];
  return h('span', { class: 'family', 'data-key': family }, `${family} `, state(tone, word));
}

export function draw(main, _place, { answer }) {
  const drawn = [
    headline(answer),
    // What is awaited, and what fails where objects come from.
    !answer.ready && notes(answer.notes),
    section('Families', families(answer.families)),
    section('Refused by the kernel', refused(answer.errors)),
    section('Cannot be read', unreadable(answer.unreadable)),
    section('Claimed by two Services', conflicts(answer.conflicts)),
    section('Limits near', limits(answer.limits.filter((limit) => limit.near))),
    section('Draining', draining(answer)),
    section('Changed by others, and made right again', drift(answer.drift)),
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
    ['From', source.from],
    ['Running since', moment(answer.started)],
  );
  const source_notes = [
    !source.complete && 'The first lists are not complete yet.',
    source.complete && !source.whole && 'An object exists that could not be read: nothing is removed until it can be.',
    source.nodeExists === false && 'This node has no Node object: endpoints and policies that depend on it are judged without.',
  ].filter(Boolean);
  return [h('h1', { 'data-key': 'title' }, sentence(answer)), h('div', { 'data-key': 'began' }, began, notes(source_notes))];
}

/** All in one sentence. */
export function sentence({ families: all, unreadable: parts, errors }) {
  const is = (wanted) => all.filter((family) => family.state === wanted).map((family) => family.family).join(' and ');
  if (all.length === 0) return 'kube-proxy is starting: nothing is written before what is awaited is there.';
  if (is('stuck')) return `${is('stuck')} is stuck: nothing that is pending can be written.`;
  if (is('failing')) {
    const failing = all.reduce((sum, family) => sum + family.failing, 0);
    return `${is('failing')} serves, but for ${counted(failing, 'entry', 'entries')} that the kernel refused.`;
  }
  if (parts.length > 0) return 'All that is known to be wanted is written, but not everything can be read.';
  if (errors.length > 0) return 'Something was refused when it was last tried.';
  if (is('starting')) return `${is('starting')} is starting.`;
  if (is('syncing')) return 'Changes are on their way into the kernel.';
  return 'All is in the kernel.';
}

function families(all) {
  const columns = [
    { title: 'Family' }, { title: 'State', wide: true }, { title: 'Pending', number: true }, { title: 'Failing', number: true },
    { title: 'Lag', number: true }, { title: 'All was written', number: true },
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
  return table('How each IP family stands', columns, all.map(row));
}

/** `default/web:http` → a link to it. */
function service(text) {
  if (!text) return '';
  const [, namespace, name] = /^([^/]+)\/([^:]+)/.exec(text) ?? [];
  return name ? h('a', { href: link(['services', namespace, name]) }, text) : text;
}

function refused(errors) {
  if (errors.length === 0) return null;
  const columns = [
    { title: 'Family' }, { title: 'What', wide: true }, { title: 'Service' }, { title: 'Why, and what to do', wide: true },
    { title: 'For', number: true },
  ];
  return table('What the kernel refused when it was last tried', columns, errors.map((error) => ({
    tone: 'warn',
    cells: [error.family, h('code', null, error.object), service(error.service), error.reason, duration(error.seconds)],
  })));
}

function unreadable(parts) {
  if (parts.length === 0) return null;
  return table('Parts of the kernel that cannot be read', [{ title: 'Family' }, { title: 'Part' }, { title: 'Why, and what to do', wide: true }],
    parts.map((part) => ({ tone: 'bad', cells: [part.family, part.part, part.reason] })));
}

function conflicts(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Family' }, { title: 'Address' }, { title: 'Has it' }, { title: 'Goes without' }];
  return table('Addresses that two Services claim', columns, all.map((conflict) => ({
    cells: [conflict.family, h('code', null, conflict.address), service(conflict.winner), service(conflict.loser)],
  })));
}

function draining({ draining: all, drainingCount }) {
  if (drainingCount === 0) return null;
  const columns = [{ title: 'Endpoint' }, { title: 'Of' }, { title: 'For', number: true }, { title: 'Connections', number: true }];
  const rows = all.map((one) => ({
    cells: [h('code', null, one.endpoint), h('code', null, one.server), duration(one.seconds), count(one.connections)],
  }));
  const more = drainingCount > all.length ? h('p', { class: 'quiet' }, `and ${count(drainingCount - all.length)} more`) : null;
  return [table('Endpoints that are gone, and whose connections end by themselves', columns, rows), more];
}

function drift(all) {
  if (all.length === 0) return null;
  const columns = [
    { title: 'Family' }, { title: 'Kind' }, { title: 'Since the start', number: true }, { title: 'Last' }, { title: 'Names of the last time', wide: true },
  ];
  return table('What somebody else has changed', columns, all.map((drifted) => ({
    cells: [drifted.family, drifted.kind, count(drifted.count), moment(drifted.last), h('code', null, drifted.names.join(', '))],
  })));
}

function limits(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Of', wide: true }, { title: 'Used', number: true }, { title: 'Limit', number: true }, { title: 'Share' }];
  return table('How much of what is limited is used', columns, all.map((limit) => {
    const share = limit.limit > 0 ? limit.used / limit.limit : 0;
    const bar = h('span', { class: 'bar', 'aria-hidden': 'true', vars: { '--share': `${Math.min(share, 1) * 100}%` } });
    return { key: limit.of, tone: limit.near ? 'warn' : null, cells: [limit.of, count(limit.used), count(limit.limit), [bar, percent(share)]] };
  }));
}

function features(all) {
  if (all.length === 0) return null;
  const columns = [{ title: 'Part' }, { title: 'There' }, { title: 'Known of it', wide: true }];
  const sorted = [...all].sort((one, other) => Number(one.found) - Number(other.found));
  return table('Parts of the kernel that the mode uses', columns, sorted.map((feature) => ({
    cells: [feature.name, feature.found ? state('good', 'found') : state('off', 'missing'), feature.note ?? ''],
  })));
}

/** What there is nothing of, in one line. */
function quiet(answer) {
  const none = [
    answer.errors.length === 0 && 'nothing is refused',
    answer.conflicts.length === 0 && 'no address is claimed twice',
    answer.drainingCount === 0 && 'nothing drains',
    answer.drift.length === 0 && 'nobody else has changed anything',
    answer.limits.every((limit) => !limit.near) && 'no limit is near',
  ].filter(Boolean);
  if (none.length === 0) return null;
  const text = none.join(', ');
  return h('p', { class: 'quiet', 'data-key': 'none' }, `${text[0].toUpperCase()}${text.slice(1)}.`);
}
