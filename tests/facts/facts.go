package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
)

// Facts are what is known of one minor's types, or of several minors' after merging.
type Facts struct {
	kinds    map[string]Kind
	messages map[string]*Message
}

// Kind is one (apiVersion, kind) and the message that it is.
type Kind struct {
	apiVersion, kind, message string
	minors                    Range
}

// Message is one protobuf message; its fields are in Go's declaration order, which is the order of their JSON.
type Message struct {
	name   string
	fields []Field
}

// Field is one line of the table: how one field is written in both forms.
type Field struct {
	facts  string // JSON name, number, type and flags
	minors Range
}

// Range is the minors that something is the same in, both included.
type Range struct{ since, until int }

func newFacts() *Facts {
	return &Facts{kinds: map[string]Kind{}, messages: map[string]*Message{}}
}

func (f *Facts) write(out *bufio.Writer) {
	for _, key := range sortedKeys(f.kinds) {
		kind := f.kinds[key]
		fmt.Fprintf(out, "kind: %s %s %s\n", kind.apiVersion, kind.kind, kind.message)
	}
	for _, name := range sortedKeys(f.messages) {
		fmt.Fprintf(out, "message: %s\n", name)
		for _, field := range f.messages[name].fields {
			fmt.Fprintln(out, field.facts)
		}
	}
}

// readFacts reads what write has written.
func readFacts(name string, minors Range) (*Facts, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	facts := newFacts()
	var message *Message
	for at, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		words := strings.Split(line, " ")
		switch {
		case words[0] == "kind:" && len(words) == 4:
			facts.addKind(Kind{words[1], words[2], words[3], minors})
		case words[0] == "message:" && len(words) == 2:
			message = &Message{name: words[1]}
			facts.messages[message.name] = message
		case len(words) == 4 && message != nil:
			message.fields = append(message.fields, Field{line, minors})
		default:
			return nil, fmt.Errorf("%s:%d: %q", name, at+1, line)
		}
	}
	return facts, nil
}

func (f *Facts) addKind(kind Kind) { f.kinds[kind.apiVersion+" "+kind.kind] = kind }

// merge joins files of facts, given as MINOR=FILE from the oldest minor to the newest, without gaps.
func merge(out *bufio.Writer, files []string) error {
	merged := newFacts()
	var all Range
	for _, file := range files {
		minor, name, _ := strings.Cut(file, "=")
		number, err := strconv.Atoi(minor)
		if err != nil {
			return err
		}
		if all.since == 0 {
			all = Range{number, number - 1}
		}
		if number != all.until+1 {
			return fmt.Errorf("minor %d does not follow %d", number, all.until)
		}
		all.until = number
		facts, err := readFacts(name, Range{number, number})
		if err != nil {
			return err
		}
		if err := merged.join(facts, number); err != nil {
			return err
		}
	}
	return merged.writeTable(out, all)
}

// join adds the facts of the minor that follows those joined already.
func (f *Facts) join(next *Facts, minor int) error {
	for key, kind := range next.kinds {
		if old, known := f.kinds[key]; known {
			if old.message != kind.message || old.minors.until != minor-1 {
				return fmt.Errorf("%s came back, or became another message, in minor %d", key, minor)
			}
			kind.minors.since = old.minors.since
		}
		f.kinds[key] = kind
	}
	for name, message := range next.messages {
		if old, known := f.messages[name]; known {
			message.fields = joinFields(old.fields, message.fields, minor)
		}
		f.messages[name] = message
	}
	return nil
}

// joinFields interleaves the lines of earlier minors with those of the next. A line that says the same in the minor
// before goes on; every other is a line of its own. The order of every minor is kept: as in a diff, the lines that go on
// are a longest common subsequence.
func joinFields(old, next []Field, minor int) []Field {
	same := func(a, b Field) bool { return a.minors.until == minor-1 && a.facts == b.facts }
	longest := make([][]int, len(old)+1)
	for at := range longest {
		longest[at] = make([]int, len(next)+1)
	}
	for a := len(old) - 1; a >= 0; a-- {
		for b := len(next) - 1; b >= 0; b-- {
			longest[a][b] = max(longest[a+1][b], longest[a][b+1])
			if same(old[a], next[b]) {
				longest[a][b] = longest[a+1][b+1] + 1
			}
		}
	}
	var joined []Field
	a, b := 0, 0
	for a < len(old) && b < len(next) {
		switch {
		case same(old[a], next[b]):
			joined = append(joined, Field{next[b].facts, Range{old[a].minors.since, minor}})
			a, b = a+1, b+1
		case longest[a+1][b] >= longest[a][b+1]:
			joined = append(joined, old[a])
			a++
		default:
			joined = append(joined, next[b])
			b++
		}
	}
	return append(append(joined, old[a:]...), next[b:]...)
}

func sortedKeys[V any](values map[string]V) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
