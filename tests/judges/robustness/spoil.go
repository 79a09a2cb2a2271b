package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.uber.org/zap"
)

// spoiling breaks one guarantee in the reports of one selection.
type spoiling struct {
	name string
	// verdict is what etcd's validators must say.
	verdict string
	// ofReads says that reads and writes are judged, too, which takes longer.
	ofReads bool
	// spoil returns false if the reports have nothing to break.
	spoil func(v *view, reports []report.ClientReport) bool
}

var spoilings = []spoiling{
	{"an event of another namespace", "event not matching watch filter", false, ofWatch(isNamespaced, 1, misplace)},
	{"two events in the wrong order", "broke Ordered", false, ofWatch(isAny, 2, swap)},
	{"an event twice", "broke Unique", false, ofWatch(isAny, 1, repeat)},
	{"two frames of one revision", "broke Atomic", false, ofWatch(isAny, 1, split)},
	{"an event after its bookmark", "broke Bookmarkable", false, ofWatch(isAny, 1, promise)},
	{"a resumed watch without its first event", "broke Resumable", false, ofWatch(isFromRevision, 2, dropFirst)},
	{"a watch without an event", "broke Reliable", false, ofWatch(isAny, 3, dropMiddle)},
	{"an event with other content", "broke Reliable", false, ofWatch(isAny, 3, falsify)},
	{"MODIFIED in the place of ADDED", "incorrect event IsCreate", false, ofWatch(isAny, 3, mistype)},
	{"a deletion with other content", "incorrect event prevValue", false, ofWatch(isAny, 1, falsifyPrevious)},
	{"an outdated list", "linearization: Failure: illegal", true, outdate},
	{"a lost write", "linearization: Failure: illegal", true, lose},
	{"a list of an old version without an object", "response didn't match expected", true, omit},
}

// spoilAll breaks each guarantee in the first selection where that is possible. It returns false if a validator does not
// notice.
func spoilAll(r *record, h *history, selections []selection) (bool, error) {
	isNoticed := true
	for _, spoiling := range spoilings {
		verdict, err := "", error(nil)
		for at := 0; at < len(selections) && verdict == "" && err == nil; at++ {
			verdict, err = spoiling.judge(r, h, selections[at])
		}
		switch {
		case err != nil:
			return false, err
		case verdict == "":
			return false, fmt.Errorf("nothing to break: %s", spoiling.name)
		case strings.Contains(verdict, spoiling.verdict):
			fmt.Printf("broken on purpose: %s: noticed: %s\n", spoiling.name, spoiling.verdict)
		default:
			isNoticed = false
			fmt.Printf("broken on purpose: %s: OVERLOOKED: %s\n", spoiling.name, verdict)
		}
	}
	return isNoticed, nil
}

// judge returns the verdict on broken reports; "" if there was nothing to break.
func (s spoiling) judge(r *record, h *history, of selection) (string, error) {
	v, err := h.view(of)
	if err != nil {
		return "", err
	}
	reports, _ := v.reports(r.of(of), map[string]int{})
	if !s.ofReads {
		// The model's first operation is enough.
		writers := &reports[len(reports)-1]
		first := writers.KeyValue[:1]
		for at := range reports {
			reports[at].KeyValue = nil
		}
		writers.KeyValue = first
	}
	if !s.spoil(v, reports) {
		return "", nil
	}
	// The validators print what differs.
	printed := os.Stdout
	os.Stdout, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	defer func() { os.Stdout = printed }()
	if err := v.validate(reports, zap.NewNop()).Error(); err != nil {
		return err.Error(), nil
	}
	return "Success", nil
}

// ofWatch returns a function that spoils the watch with the most events. `events` are the responses that have some; at
// least `least` are necessary.
func ofWatch(
	isFit func(*model.WatchOperation) bool, least int, spoil func(watch *model.WatchOperation, events []int) bool,
) func(*view, []report.ClientReport) bool {
	return func(_ *view, reports []report.ClientReport) bool {
		var longest *model.WatchOperation
		var most []int
		for at := range reports {
			for number := range reports[at].Watch {
				watch := &reports[at].Watch[number]
				events := eventsOf(watch)
				if isFit(watch) && len(events) >= least && len(events) > len(most) {
					longest, most = watch, events
				}
			}
		}
		return longest != nil && spoil(longest, most)
	}
}

func eventsOf(watch *model.WatchOperation) (at []int) {
	for number, response := range watch.Responses {
		if len(response.Events) > 0 {
			at = append(at, number)
		}
	}
	return at
}

func isAny(*model.WatchOperation) bool                { return true }
func isNamespaced(watch *model.WatchOperation) bool   { return watch.Request.Key != root }
func isFromRevision(watch *model.WatchOperation) bool { return watch.Request.Revision > 0 }

func misplace(watch *model.WatchOperation, events []int) bool {
	watch.Responses[events[0]].Events[0].Key = root + "elsewhere/name"
	return true
}

func swap(watch *model.WatchOperation, events []int) bool {
	one, other := events[len(events)/2-1], events[len(events)/2]
	watch.Responses[one], watch.Responses[other] = watch.Responses[other], watch.Responses[one]
	return true
}

func repeat(watch *model.WatchOperation, events []int) bool {
	at := events[len(events)/2]
	watch.Responses = slices.Insert(watch.Responses, at, watch.Responses[at])
	return true
}

func split(watch *model.WatchOperation, events []int) bool {
	at := events[len(events)/2]
	other := watch.Responses[at]
	other.Events = slices.Clone(other.Events)
	other.Events[0].Key += "-other"
	watch.Responses = slices.Insert(watch.Responses, at, other)
	return true
}

func promise(watch *model.WatchOperation, events []int) bool {
	at := events[len(events)/2]
	bookmark := model.WatchResponse{IsProgressNotify: true, Revision: watch.Responses[at].Revision}
	watch.Responses = slices.Insert(watch.Responses, at, bookmark)
	return true
}

func dropFirst(watch *model.WatchOperation, events []int) bool {
	watch.Responses = slices.Delete(watch.Responses, events[0], events[0]+1)
	return true
}

func dropMiddle(watch *model.WatchOperation, events []int) bool {
	at := events[len(events)/2]
	watch.Responses = slices.Delete(watch.Responses, at, at+1)
	return true
}

// changeOne changes an event after the first one, because Resumable judges that.
func changeOne(watch *model.WatchOperation, events []int, change func(*model.WatchEvent) bool) bool {
	for _, at := range events[1:] {
		if change(&watch.Responses[at].Events[0]) {
			return true
		}
	}
	return false
}

func falsify(watch *model.WatchOperation, events []int) bool {
	return changeOne(watch, events, func(event *model.WatchEvent) bool {
		event.Value.Value += "?"
		return event.Type == model.PutOperation
	})
}

func mistype(watch *model.WatchOperation, events []int) bool {
	return changeOne(watch, events, func(event *model.WatchEvent) bool {
		isAdded := event.IsCreate
		event.IsCreate = false
		return isAdded
	})
}

func falsifyPrevious(watch *model.WatchOperation, events []int) bool {
	for _, at := range events {
		if previous := watch.Responses[at].Events[0].PrevValue; previous != nil {
			previous.Value.Value += "?"
			return true
		}
	}
	return false
}

// outdate gives a list without a version the state before the newest change that was committed before its call.
func outdate(v *view, reports []report.ClientReport) bool {
	return ofRead(reports, func(read *porcupine.Operation, request *model.RangeRequest) bool {
		before := (&floors{}).before(v, read.Call-v.clock(0)) - 1
		if !isLinearizable(read) || request.End == "" || before <= v.from {
			return false
		}
		state := model.NewReplay(v.persisted)
		past, err := state.StateForRevision(before)
		if err != nil {
			return false
		}
		_, read.Output = past.Step(read.Input.(model.EtcdRequest))
		return true
	})
}

func omit(_ *view, reports []report.ClientReport) bool {
	return ofRead(reports, func(read *porcupine.Operation, request *model.RangeRequest) bool {
		answer := read.Output.(model.MaybeEtcdResponse).Range
		// Porcupine judges a list at the newest version.
		if isLinearizable(read) || len(answer.KVs) == 0 || request.Revision == revision(read) {
			return false
		}
		answer.KVs = answer.KVs[1:]
		answer.Count--
		return true
	})
}

// ofRead changes the last read for which that is possible.
func ofRead(reports []report.ClientReport, change func(*porcupine.Operation, *model.RangeRequest) bool) bool {
	for client := range reports[:len(reports)-1] {
		reads := reports[client].KeyValue
		for at := len(reads) - 1; at >= 0; at-- {
			if change(&reads[at], reads[at].Input.(model.EtcdRequest).Range) {
				return true
			}
		}
	}
	return false
}

// lose adds an acknowledged write that etcd does not have.
func lose(v *view, reports []report.ClientReport) bool {
	writers := &reports[len(reports)-1]
	lost := writers.KeyValue[len(writers.KeyValue)/2]
	lost.ClientId += len(writers.KeyValue)
	lost.Input = txn([]model.EtcdOperation{put(root+"lost/write", model.ValueOrHash{Value: "lost"})})
	lost.Output = model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{
		Txn: &model.TxnResponse{Results: make([]model.EtcdOperationResult, 1)}, Revision: revision(&lost),
	}}
	writers.KeyValue = append(writers.KeyValue, lost)
	return true
}
