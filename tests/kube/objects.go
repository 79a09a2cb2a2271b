package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// buildOptions shape the objects that the driver creates.
type buildOptions struct {
	group      string // value prefix of the label "app"
	padding    int    // bytes of filler: in an annotation, of a secret its data
	words      bool   // a secret's data are words rather than random bytes
	nodePrefix string
	nodeCount  int // pods are bound to this many nodes; 0 leaves them unscheduled
}

const (
	paddingAnnotation = "testbed/padding"
	// The groups give label selectors something to select: each holds one object in
	// this many.
	groups = 20
)

func objectMeta(name string, index int, o buildOptions) metav1.ObjectMeta {
	app := fmt.Sprintf("%s-%d", o.group, index%groups)
	return metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			"app":                       app,
			"app.kubernetes.io/name":    app,
			"app.kubernetes.io/part-of": o.group,
		},
		Annotations: map[string]string{paddingAnnotation: strings.Repeat("x", max(o.padding, 0))},
	}
}

// buildPod makes a pod such as a Deployment would, with the fields that make up most
// of a real pod's bytes.
func buildPod(name string, index int, o buildOptions) apiObject {
	pod := &corev1.Pod{ObjectMeta: objectMeta(name, index, o)}
	pod.Labels["pod-template-hash"] = "7c5ddbdf54"
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pod.Labels["app"] + "-7c5ddbdf54",
		UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", index%groups)),
	}}
	probe := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
		PeriodSeconds: 10,
	}
	pod.Spec = corev1.PodSpec{
		Containers: []corev1.Container{{
			Name:  "main",
			Image: "registry.example/team/" + pod.Labels["app"] + ":1.2.3",
			Args:  []string{"serve", "--listen=:8080", "--log-format=json"},
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Env: []corev1.EnvVar{
				{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				{Name: "LEVEL", Value: "info"},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU:    apiresource.MustParse("100m"),
					corev1.ResourceMemory: apiresource.MustParse("128Mi"),
				},
			},
			ReadinessProbe: probe,
			LivenessProbe:  probe,
			VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"}, {Name: "scratch", MountPath: "/tmp"}},
		}},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: pod.Labels["app"]},
			}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	if o.nodeCount > 0 {
		pod.Spec.NodeName = fmt.Sprintf("%s%d", o.nodePrefix, index%o.nodeCount)
	}
	return pod
}

func buildConfigMap(name string, index int, o buildOptions) apiObject {
	return &corev1.ConfigMap{
		ObjectMeta: objectMeta(name, index, o),
		Data:       map[string]string{"config.yaml": fmt.Sprintf("index: %d\nlevel: info\n", index)},
	}
}

// buildSecret makes a secret of data that, as a rule, does not compress. The data follow
// from the index.
func buildSecret(name string, index int, o buildOptions) apiObject {
	filler := o.padding
	o.padding = 0
	return &corev1.Secret{
		ObjectMeta: objectMeta(name, index, o),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"data": secretData(index, max(filler, 0), o.words)},
	}
}

func secretData(index, size int, words bool) []byte {
	random := rand.NewChaCha8([32]byte{byte(index), byte(index >> 8), byte(index >> 16), 1})
	data := make([]byte, size)
	_, _ = random.Read(data)
	if !words {
		return data
	}
	// A thousand words of two to nine letters, drawn by the random bytes.
	text := make([]byte, 0, size+16)
	for at := 0; len(text) < size; at++ {
		word := (int(data[at%size])<<8 | int(data[(at+1)%size])) % 1000
		for letter := range 2 + word%8 {
			text = append(text, byte('a'+(word*7+letter*letter*word)%26))
		}
		text = append(text, ' ')
	}
	return text[:size]
}
