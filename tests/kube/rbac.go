package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// createObjects makes the namespaces and rights that tests find on a control plane
// that is ready. All of it may be there already, from an earlier up.
func createObjects(ctx context.Context, client kubernetes.Interface) error {
	// t1-a sorts right after t1: a prefix match that forgets the separator shows.
	for _, name := range []string{"t1", "t1-a"} {
		if err := createNamespace(ctx, client, name); err != nil {
			return err
		}
	}
	if err := aggregateClusterRoles(ctx, client); err != nil {
		return err
	}
	reader := metav1.ObjectMeta{Name: "reader", Namespace: "t1"}
	_, err := client.RbacV1().Roles(reader.Namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: reader,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: []string{"pods", "configmaps"},
			Verbs:     []string{"get", "list", "watch"},
		}},
	}, metav1.CreateOptions{})
	if err := ignoreExisting(err); err != nil {
		return fmt.Errorf("create role of alice: %w", err)
	}
	_, err = client.RbacV1().RoleBindings(reader.Namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: reader,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: reader.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}, metav1.CreateOptions{})
	if err := ignoreExisting(err); err != nil {
		return fmt.Errorf("bind role of alice: %w", err)
	}
	if err := bindClusterRole(ctx, client, "viewer", "view"); err != nil {
		return err
	}
	for _, name := range []string{"proxy", "impersonator"} {
		_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "testbed:" + name},
			Rules:      proxyRules[name],
		}, metav1.CreateOptions{})
		if err := ignoreExisting(err); err != nil {
			return fmt.Errorf("create role of %s: %w", name, err)
		}
		if err := bindClusterRole(ctx, client, name, "testbed:"+name); err != nil {
			return err
		}
	}
	return nil
}

// proxyRules are the rights of a proxy that asks the apiserver who its callers are
// and what they may: one identity reads and asks, and one can do nothing but become
// somebody else.
var proxyRules = map[string][]rbacv1.PolicyRule{
	"proxy": {
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	},
	"impersonator": {
		{APIGroups: []string{""}, Resources: []string{"users", "groups", "serviceaccounts"}, Verbs: []string{"impersonate"}},
		// "userextras/*" would match that very name only: RBAC knows no such pattern.
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"}},
	},
}

// bindClusterRole gives a user, by a binding of the user's name, a cluster role everywhere.
func bindClusterRole(ctx context.Context, client kubernetes.Interface, user, role string) error {
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err := ignoreExisting(err); err != nil {
		return fmt.Errorf("bind role of %s: %w", user, err)
	}
	return nil
}

func createNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	if err := ignoreExisting(err); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

func ignoreExisting(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// aggregateClusterRoles fills the built-in view, edit and admin roles. In a cluster
// that is the work of a controller in kube-controller-manager, which does not run
// here; without it these roles grant nothing.
func aggregateClusterRoles(ctx context.Context, client kubernetes.Interface) error {
	roles, err := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	// edit is made of view's parts and admin of edit's: the parts carry labels of
	// their own, and the label that makes view a part of edit applies to rules that
	// are filled in the same pass. So pass until nothing changes.
	for changed := true; changed; {
		changed = false
		for i := range roles.Items {
			role := &roles.Items[i]
			rules, err := aggregatedRules(role, roles.Items)
			if err != nil {
				return err
			}
			if len(rules) == len(role.Rules) {
				continue
			}
			role.Rules = rules
			updated, err := client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
			if err != nil {
				return fmt.Errorf("aggregate cluster role %s: %w", role.Name, err)
			}
			roles.Items[i] = *updated
			changed = true
		}
	}
	return nil
}

// aggregatedRules is the union of the rules of all roles that role selects. A role
// that aggregates nothing keeps its own.
func aggregatedRules(role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregation rule of %s: %w", role.Name, err)
		}
		for _, part := range all {
			if part.Name != role.Name && selector.Matches(labels.Set(part.Labels)) {
				rules = append(rules, part.Rules...)
			}
		}
	}
	return rules, nil
}
