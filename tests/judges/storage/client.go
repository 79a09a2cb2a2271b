package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// client sends single requests to one server, in the user's own words: nothing is
// retried, defaulted or cached.
type client struct {
	http *http.Client
	base string
}

func newClient(kubeconfig string) (*client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	// Dozens of watches share a connection.
	config.QPS = -1
	transport, err := rest.HTTPClientFor(config)
	return &client{http: transport, base: config.Host}, err
}

// parameters are those of a query; empty ones are left out.
type parameters url.Values

func (p parameters) with(name, value string) parameters {
	if value != "" {
		p[name] = []string{value}
	}
	return p
}

func (c *client) pods(namespace, name string, query parameters) string {
	path := c.base + "/apis/example.apiserver.k8s.io/v1"
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/pods"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path + "?" + url.Values(query).Encode()
}

// get gets an object. No object has a key without a name.
func (c *client) get(ctx context.Context, namespace, name string, query parameters, out *example.Pod) error {
	if name == "" {
		return apierrors.NewNotFound(examplev1.Resource("pods"), namespace)
	}
	return c.send(ctx, http.MethodGet, c.pods(namespace, name, query), nil, out)
}

func (c *client) createNamespace(ctx context.Context, name string) error {
	namespace := map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]string{"name": name},
	}
	return c.sendJSON(ctx, http.MethodPost, c.base+"/api/v1/namespaces", namespace, nil)
}

// send sends a request with an optional body and decodes its answer into out, in the
// internal form that the tests compare.
func (c *client) send(ctx context.Context, method, target string, body, out any) error {
	if pod, ok := body.(*example.Pod); ok {
		written := &examplev1.Pod{}
		if err := scheme.Convert(pod, written, nil); err != nil {
			return err
		}
		written.APIVersion, written.Kind = examplev1.SchemeGroupVersion.String(), "Pod"
		body = written
	}
	switch out := out.(type) {
	case *example.Pod:
		read := &examplev1.Pod{}
		if err := c.sendJSON(ctx, method, target, body, read); err != nil {
			return err
		}
		return internalPod(read, out)
	case *example.PodList:
		read := &examplev1.PodList{}
		if err := c.sendJSON(ctx, method, target, body, read); err != nil {
			return err
		}
		out.ListMeta, out.Items = read.ListMeta, make([]example.Pod, len(read.Items))
		for n := range read.Items {
			if err := internalPod(&read.Items[n], &out.Items[n]); err != nil {
				return err
			}
		}
		return nil
	default:
		return c.sendJSON(ctx, method, target, body, nil)
	}
}

// internalPod converts an object, without what a store does not know: the type that
// only JSON names, and what an API server adds when it writes.
func internalPod(read *examplev1.Pod, out *example.Pod) error {
	err := scheme.Convert(read, out, nil)
	out.TypeMeta = metav1.TypeMeta{}
	out.UID, out.ManagedFields, out.Generation, out.CreationTimestamp = "", nil, 0, metav1.Time{}
	return err
}

func (c *client) sendJSON(ctx context.Context, method, target string, body, out any) error {
	response, err := c.open(ctx, method, target, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// open returns a successful response. An error status is returned as an error.
func (c *client) open(ctx context.Context, method, target string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil || response.StatusCode < 300 {
		return response, err
	}
	defer response.Body.Close()
	status := metav1.Status{}
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return nil, errors.Join(errors.New(response.Status), err)
	}
	return nil, apierrors.FromObject(&status)
}

// stream is a watch whose events are read by one goroutine.
type stream struct {
	events chan watch.Event
	cancel context.CancelFunc
}

func (s *stream) Stop() { s.cancel() }

func (s *stream) ResultChan() <-chan watch.Event { return s.events }

func (c *client) watch(ctx context.Context, target string) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	response, err := c.open(ctx, http.MethodGet, target, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{events: make(chan watch.Event), cancel: cancel}
	go func() {
		defer close(s.events)
		defer response.Body.Close()
		decoder := json.NewDecoder(response.Body)
		for {
			event, err := nextEvent(decoder)
			if err != nil {
				return
			}
			select {
			case s.events <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s, nil
}

func nextEvent(decoder *json.Decoder) (watch.Event, error) {
	var frame struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	if err := decoder.Decode(&frame); err != nil {
		return watch.Event{}, err
	}
	if frame.Type == watch.Error {
		status := &metav1.Status{}
		err := json.Unmarshal(frame.Object, status)
		return watch.Event{Type: frame.Type, Object: status}, err
	}
	read, pod := &examplev1.Pod{}, &example.Pod{}
	if err := json.Unmarshal(frame.Object, read); err != nil {
		return watch.Event{}, err
	}
	return watch.Event{Type: frame.Type, Object: pod}, internalPod(read, pod)
}
