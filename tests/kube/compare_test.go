package main

import "testing"

// watchOf feeds events to a watch until it is done and ends it.
func watchOf(t *testing.T, index int, ended string, untilRV uint64, initial bool, events ...watchEvent) tracedWatch {
	t.Helper()
	g := &goal{}
	g.rv.Store(untilRV)
	w := newWatchState(index, 0, g, initial)
	w.chained = true
	for _, event := range events {
		if w.observe(jsonFrame(t, event.kind, event.key, "0"), event) {
			break
		}
	}
	w.end(ended, "")
	return tracedWatch{w.record, w.chain}
}

func added(key string, rv uint64) watchEvent { return watchEvent{kind: "ADDED", key: key, rv: rv} }

func bookmark(rv uint64) watchEvent { return watchEvent{kind: "BOOKMARK", rv: rv} }

func TestDifference(t *testing.T) {
	a, b, c := added("a", 1), added("b", 2), added("c", 3)
	reference := watchOf(t, -1, endedComplete, 3, false, a, b, c)
	for _, test := range []struct {
		name  string
		watch tracedWatch
		same  bool
	}{
		{"equal", watchOf(t, 0, endedComplete, 3, false, a, b, c), true},
		{"equal but for bookmarks", watchOf(t, 0, endedComplete, 3, false, bookmark(1), a, bookmark(1), b, c), true},
		{"other order", watchOf(t, 0, endedComplete, 0, false, b, a, c), false},
		{"complete but short", watchOf(t, 0, endedComplete, 3, false, a, c), false},
		{"cut off", watchOf(t, 0, endedEOF, 3, false, a, b), true},
		{"cut off at once", watchOf(t, 0, endedEOF, 3, false), true},
		{"cut off after a gap", watchOf(t, 0, endedEOF, 3, false, a, c), false},
		{"too long", watchOf(t, 0, endedEOF, 0, false, a, b, c, added("d", 4)), false},
	} {
		if got := reference.difference(test.watch.watchRecord); (got == "") != test.same {
			t.Errorf("%s: difference %q", test.name, got)
		}
	}
}

// A watch is complete at the wanted version, by an event or a bookmark, but not by an
// object of the state it starts with: those come in the order of their names.
func TestCompletion(t *testing.T) {
	for _, test := range []struct {
		name   string
		watch  tracedWatch
		events int
	}{
		{"at the version", watchOf(t, 0, "", 2, false, added("a", 1), added("b", 2), added("c", 3)), 2},
		{"later event does not count", watchOf(t, 0, "", 2, false, added("a", 1), added("c", 3)), 1},
		{"by bookmark", watchOf(t, 0, "", 5, false, added("a", 1), bookmark(5), added("c", 6)), 1},
		{"not in the initial state", watchOf(t, 0, "", 2, true, added("a", 9), added("b", 2), bookmark(9), added("c", 10)), 2},
	} {
		if test.watch.Events != test.events {
			t.Errorf("%s: %d events counted, want %d", test.name, test.watch.Events, test.events)
		}
	}
}

func TestFirstDifference(t *testing.T) {
	want := map[string]uint64{"a": 1, "b": 2}
	for _, test := range []struct {
		got  map[string]uint64
		text string
	}{
		{map[string]uint64{"a": 1, "b": 2}, "none"},
		{map[string]uint64{"a": 1}, "b (rv 2) is missing"},
		{map[string]uint64{"a": 1, "b": 3}, "b is at rv 3, should be at 2"},
		{map[string]uint64{"a": 1, "b": 2, "c": 3}, "c (rv 3) should not be there"},
	} {
		if got := firstDifference(test.got, want); got != test.text {
			t.Errorf("%v: %q, want %q", test.got, got, test.text)
		}
		if same := equalMaps(test.got, want); same != (test.text == "none") {
			t.Errorf("%v: equalMaps is %v", test.got, same)
		}
	}
}
