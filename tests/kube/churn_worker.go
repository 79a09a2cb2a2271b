package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// opAnnotation carries the number of the last write. When the answer to a write is
	// lost, it tells whether the write was made.
	opAnnotation = "testbed/op"
	colorLabel   = "color"
)

// churnWorker makes one sequence of writes to objects that are its own.
type churnWorker struct {
	collection
	options   churnOptions
	prefix    string // of its objects' names
	random    *rand.Rand
	deletions *deletionLog
	report    func(churnLine)

	live  []string // names of the existing objects, in order of creation
	state map[string]apiObject
	made  int // objects created so far
	op    string
}

func newChurnWorker(index int, c collection, o churnOptions, deletions *deletionLog, report func(churnLine)) *churnWorker {
	return &churnWorker{
		collection: c, options: o, deletions: deletions, report: report,
		prefix: fmt.Sprintf("%s-%d-", o.prefix, index),
		random: rand.New(rand.NewPCG(o.seed, uint64(index))),
		state:  map[string]apiObject{},
	}
}

func (w *churnWorker) run(ctx context.Context, ops int) error {
	if err := w.adopt(ctx); err != nil {
		return err
	}
	pace := newPacer(w.options.rate / float64(w.options.workers))
	for n := range ops {
		if !pace.wait(ctx) {
			return context.Cause(ctx)
		}
		w.op = fmt.Sprintf("%d-%s%d", w.options.seed, w.prefix, n)
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// adopt takes over the objects that an earlier run left.
func (w *churnWorker) adopt(ctx context.Context) error {
	list, err := w.list(ctx, metav1.ListOptions{LabelSelector: partOf(w.options.prefix)})
	if err != nil {
		return fmt.Errorf("list earlier objects: %w", err)
	}
	for _, object := range listItems(list) {
		if strings.HasPrefix(object.GetName(), w.prefix) {
			w.keep(object)
			_, _ = fmt.Sscanf(strings.TrimPrefix(object.GetName(), w.prefix), "%d", &w.made)
			w.made++
		}
	}
	return nil
}

// step makes one write, as often as it takes.
func (w *churnWorker) step(ctx context.Context) error {
	kind, name := w.pick()
	line := churnLine{Op: kind, Key: w.namespace + "/" + name}
	if kind == "patch" {
		line.Detail = w.pickPatch()
	}
	for {
		line.StartNS = time.Now().UnixNano()
		object, err := w.try(ctx, line, name)
		line.EndNS = time.Now().UnixNano()
		if err != nil {
			failed := line
			failed.Error = err.Error()
			w.report(failed)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if hopeless(err) {
				return fmt.Errorf("%s %s: %w", kind, line.Key, err)
			}
			var applied bool
			if object, applied, err = w.recover(ctx, kind, name); err != nil {
				return err
			}
			if !applied {
				continue
			}
			line.EndNS = time.Now().UnixNano()
			line.Recovered = true
		}
		if kind == "delete" {
			written := w.deletions.wait(ctx, w.forget(name))
			line.RV, line.MarkedRV = written.rv, written.markedRV
		} else {
			w.keep(object)
			if line.RV, err = parseRV(object.GetResourceVersion()); err != nil {
				return err
			}
		}
		w.report(line)
		return nil
	}
}

// pick draws an operation and the object it is for. The number of objects stays
// between one and twice the wanted one, whatever the mix.
func (w *churnWorker) pick() (kind, name string) {
	kind = w.options.mix[w.random.IntN(len(w.options.mix))]
	limit := max(2*w.options.objects/w.options.workers, 1)
	if kind == "create" && len(w.live) >= limit {
		kind = "update"
		if slices.Contains(w.options.mix, "delete") {
			kind = "delete"
		}
	}
	if len(w.live) == 0 || (kind != "create" && kind != "delete" && len(w.live) < w.options.objects/w.options.workers && w.random.IntN(2) == 0) {
		kind = "create"
	}
	if kind == "create" {
		w.made++
		return kind, fmt.Sprintf("%s%06d", w.prefix, w.made-1)
	}
	return kind, w.live[w.random.IntN(len(w.live))]
}

func (w *churnWorker) pickPatch() string {
	if w.resource.name == "pods" && w.random.IntN(2) == 0 {
		return "status"
	}
	return "label"
}

func (w *churnWorker) try(ctx context.Context, line churnLine, name string) (apiObject, error) {
	switch line.Op {
	case "create":
		object := w.build(name, w.made-1, w.options.build)
		object.SetAnnotations(with(object.GetAnnotations(), opAnnotation, w.op))
		object.SetLabels(with(object.GetLabels(), colorLabel, "red"))
		return w.create(ctx, object)
	case "update":
		object := w.state[name].DeepCopyObject().(apiObject)
		object.SetAnnotations(with(object.GetAnnotations(), opAnnotation, w.op))
		return w.update(ctx, object)
	case "patch":
		return w.patch(ctx, name, line.Detail)
	default:
		return nil, w.delete(ctx, name)
	}
}

// patch flips a label, which moves the object into or out of selections, or the phase
// of a pod, as a kubelet does.
func (w *churnWorker) patch(ctx context.Context, name, detail string) (apiObject, error) {
	metadata := map[string]any{
		"annotations": map[string]string{opAnnotation: w.op},
		// A retry must not repeat a patch whose answer is only late.
		"resourceVersion": w.state[name].GetResourceVersion(),
	}
	patch := map[string]any{"metadata": metadata}
	request := w.client.Patch(types.MergePatchType).Namespace(w.namespace).Resource(w.resource.name).Name(name)
	if detail == "status" {
		patch["status"] = map[string]any{"phase": "Running", "podIP": "10.1.2.3", "message": w.op}
		request = request.SubResource("status")
	} else {
		color := "red"
		if w.state[name].GetLabels()[colorLabel] == "red" {
			color = "blue"
		}
		metadata["labels"] = map[string]string{colorLabel: color}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	out := w.newItem()
	err = request.Body(body).Do(ctx).Into(out)
	return out, err
}

// forget drops a deleted object and returns its UID.
func (w *churnWorker) forget(name string) types.UID {
	uid := w.state[name].GetUID()
	delete(w.state, name)
	w.live = slices.DeleteFunc(w.live, func(n string) bool { return n == name })
	return uid
}

func (w *churnWorker) keep(object apiObject) {
	if _, known := w.state[object.GetName()]; !known {
		w.live = append(w.live, object.GetName())
	}
	w.state[object.GetName()] = object
}

// recover finds out, as soon as the server answers again, whether a failed write was
// made after all.
func (w *churnWorker) recover(ctx context.Context, kind, name string) (object apiObject, applied bool, err error) {
	for {
		object, err = w.get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && kind == "delete":
			return nil, true, nil
		case apierrors.IsNotFound(err) && kind == "create":
			return nil, false, nil
		case apierrors.IsNotFound(err), err != nil && hopeless(err):
			return nil, false, fmt.Errorf("%s/%s after a failed %s: %w", w.namespace, name, kind, err)
		case err == nil && kind != "delete" && object.GetAnnotations()[opAnnotation] == w.op:
			return object, true, nil
		case err == nil && kind == "create":
			return nil, false, fmt.Errorf("%s/%s exists and is not ours", w.namespace, name)
		case err == nil:
			w.keep(object)
			return nil, false, nil
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return nil, false, context.Cause(ctx)
		}
	}
}

// hopeless tells errors that a retry cannot mend from those of a server that is down,
// busy or was a write ahead.
func hopeless(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusConflict, http.StatusNotFound, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	case http.StatusForbidden, http.StatusUnauthorized:
		// An apiserver that is just starting does not know all roles yet.
		return false
	default:
		return code >= 400 && code < 500
	}
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
