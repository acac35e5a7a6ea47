// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// account is the service account of TokenConfig.
const account = "kiln-test"

// TokenConfig returns a kubeconfig file for a service account with all permissions, and the account's token: processes in pods
// authenticate with tokens. Call it once per server.
func (s *Server) TokenConfig(ctx context.Context) (kubeconfig []byte, token string, err error) {
	admin, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return nil, "", fmt.Errorf("make a client: %w", err)
	}
	if err := makeAccount(ctx, admin); err != nil {
		return nil, "", err
	}
	kubeconfig, config, err := s.AccountConfig(ctx, metav1.NamespaceDefault, account)
	if err != nil {
		return nil, "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("make a client of %s: %w", account, err)
	}
	// The server's authorizer receives the binding by a watch.
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("wait until %s is authorized: %w", account, err)
	}
	return kubeconfig, config.BearerToken, nil
}

// AccountConfig returns a kubeconfig file and the configuration of a client with a token of an existing service account. The token is valid
// for a day.
func (s *Server) AccountConfig(ctx context.Context, namespace, account string) ([]byte, *rest.Config, error) {
	admin, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
	if request, err = admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{}); err != nil {
		return nil, nil, fmt.Errorf("request a token of %s: %w", account, err)
	}
	file, err := clientcmd.Load(s.KubeConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	user := file.AuthInfos[file.Contexts[file.CurrentContext].AuthInfo]
	user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, request.Status.Token
	kubeconfig, err := clientcmd.Write(*file)
	if err != nil {
		return nil, nil, fmt.Errorf("write the kubeconfig: %w", err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = request.Status.Token
	return kubeconfig, config, nil
}

// makeAccount creates the service account and its binding to the role cluster-admin.
func makeAccount(ctx context.Context, admin kubernetes.Interface) error {
	accounts := admin.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create service account %s: %w", account, err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: account}},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bind service account %s: %w", account, err)
	}
	return nil
}
