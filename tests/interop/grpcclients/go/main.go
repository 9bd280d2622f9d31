// The official Go client of RocketMQ 5, as a program with the operations of tests/interop/grpcclient.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

type request struct {
	Op        string    `json:"op"`
	Arguments arguments `json:"arguments"`
}

type arguments struct {
	Endpoints   string          `json:"endpoints"`
	TLS         bool            `json:"tls"`
	User        string          `json:"user"`
	Password    string          `json:"password"`
	Topics      json.RawMessage `json:"topics"`
	Handle      int             `json:"handle"`
	Messages    []outgoing      `json:"messages"`
	Message     outgoing        `json:"message"`
	Decision    string          `json:"decision"`
	Group       string          `json:"group"`
	WaitMs      int64           `json:"waitMs"`
	Count       int32           `json:"count"`
	InvisibleMs int64           `json:"invisibleMs"`
	ID          string          `json:"id"`
}

type outgoing struct {
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	Group      string            `json:"group"`
	DeliverMs  int64             `json:"deliverMs"`
}

type receipt struct {
	ID     string `json:"id"`
	Recall string `json:"recall"`
}

type received struct {
	ID         string            `json:"id"`
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	Group      string            `json:"group"`
	Attempt    int32             `json:"attempt"`
	Corrupted  bool              `json:"corrupted"`
	ReceivedMs int64             `json:"receivedMs"`
}

type failure struct {
	Type string `json:"type"`
	Code int32  `json:"code"`
	Text string `json:"text"`
}

// A producer or consumer, and what its callbacks have noted.
type client struct {
	producer rocketmq.Producer
	simple   rocketmq.SimpleConsumer
	stop     func() error
	lock     sync.Mutex
	checked  []string
	received []received
	times    map[string]int
}

var (
	clients    = map[int]*client{}
	messages   = map[string]*rocketmq.MessageView{}
	operations = map[string]func(arguments) (any, error){
		"producer": producer,
		"send":     send,
		"transact": transact,
		"checked":  checked,
		"push":     push,
		"received": receivedSoFar,
		"simple":   simple,
		"receive":  receive,
		"ack":      ack,
		"change":   change,
		"close":    shut,
	}
)

func main() {
	answers := os.Stdout
	os.Stdout = os.Stderr
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		answer, err := json.Marshal(answerTo(line))
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(answers, string(answer))
	}
}

func answerTo(line []byte) map[string]any {
	var asked request
	err := json.Unmarshal(line, &asked)
	var result any
	if err == nil {
		operation, known := operations[asked.Op]
		if !known {
			err = fmt.Errorf("no operation %s", asked.Op)
		} else {
			result, err = operation(asked.Arguments)
		}
	}
	if err == nil {
		return map[string]any{"result": result}
	}
	return map[string]any{"error": failure{fmt.Sprintf("%T", err), codeOf(err), err.Error()}}
}

var codeName = regexp.MustCompile("CODE: ([A-Z_]+)")

// codeOf finds the code of the proxy by its name, since the client wraps its errors as text.
func codeOf(err error) int32 {
	if found := codeName.FindStringSubmatch(err.Error()); found != nil {
		return v2.Code_value[found[1]]
	}
	return 0
}

func configuration(a arguments) *rocketmq.Config {
	rocketmq.EnableSsl = a.TLS // read when a client connects
	return &rocketmq.Config{
		Endpoint:      a.Endpoints,
		ConsumerGroup: a.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: a.User, AccessSecret: a.Password},
	}
}

func opened(c *client) int {
	handle := len(clients) + 1
	clients[handle] = c
	return handle
}

func (o outgoing) message() *rocketmq.Message {
	message := &rocketmq.Message{Topic: o.Topic, Body: o.Body}
	if o.Tag != "" {
		message.SetTag(o.Tag)
	}
	if len(o.Keys) > 0 {
		message.SetKeys(o.Keys...)
	}
	for key, value := range o.Properties {
		message.AddProperty(key, value)
	}
	if o.Group != "" {
		message.SetMessageGroup(o.Group)
	}
	if o.DeliverMs != 0 {
		message.SetDelayTimestamp(time.UnixMilli(o.DeliverMs))
	}
	return message
}

func described(message *rocketmq.MessageView) received {
	found := received{
		ID: message.GetMessageId(), Topic: message.GetTopic(), Body: message.GetBody(), Keys: message.GetKeys(),
		Properties: message.GetProperties(), Attempt: message.GetDeliveryAttempt(),
		ReceivedMs: time.Now().UnixMilli(),
	}
	if found.Keys == nil {
		found.Keys = []string{}
	}
	if found.Properties == nil {
		found.Properties = map[string]string{}
	}
	if tag := message.GetTag(); tag != nil {
		found.Tag = *tag
	}
	if group := message.GetMessageGroup(); group != nil {
		found.Group = *group
	}
	return found
}

func producer(a arguments) (any, error) {
	c := &client{checked: []string{}}
	var topics []string
	if err := json.Unmarshal(a.Topics, &topics); err != nil {
		return nil, err
	}
	check := func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		c.lock.Lock()
		defer c.lock.Unlock()
		c.checked = append(c.checked, message.GetMessageId())
		if message.GetProperties()["check"] == "ROLLBACK" {
			return rocketmq.ROLLBACK
		}
		return rocketmq.COMMIT
	}
	made, err := rocketmq.NewProducer(configuration(a), rocketmq.WithTopics(topics...),
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	if err != nil {
		return nil, err
	}
	c.producer, c.stop = made, made.GracefulStop
	if err := made.Start(); err != nil {
		return nil, err
	}
	return opened(c), nil
}

func send(a arguments) (any, error) {
	receipts := []receipt{}
	for _, one := range a.Messages {
		sent, err := clients[a.Handle].producer.Send(context.Background(), one.message())
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, receipt{ID: sent[0].MessageID})
	}
	return receipts, nil
}

func transact(a arguments) (any, error) {
	producer := clients[a.Handle].producer
	transaction := producer.BeginTransaction()
	sent, err := producer.SendWithTransaction(context.Background(), a.Message.message(), transaction)
	if err != nil {
		return nil, err
	}
	switch a.Decision {
	case "COMMIT":
		err = transaction.Commit()
	case "ROLLBACK":
		err = transaction.RollBack()
	}
	return receipt{ID: sent[0].MessageID}, err
}

func checked(a arguments) (any, error) {
	c := clients[a.Handle]
	c.lock.Lock()
	defer c.lock.Unlock()
	return append([]string{}, c.checked...), nil
}

func expressions(a arguments) (map[string]*rocketmq.FilterExpression, error) {
	var tags map[string]string
	if err := json.Unmarshal(a.Topics, &tags); err != nil {
		return nil, err
	}
	found := map[string]*rocketmq.FilterExpression{}
	for topic, tag := range tags {
		found[topic] = rocketmq.NewFilterExpression(tag)
	}
	return found, nil
}

func push(a arguments) (any, error) {
	c := &client{received: []received{}, times: map[string]int{}}
	chosen, err := expressions(a)
	if err != nil {
		return nil, err
	}
	consume := func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		c.lock.Lock()
		defer c.lock.Unlock()
		c.received = append(c.received, described(message))
		c.times[message.GetMessageId()]++
		failures, _ := strconv.Atoi(message.GetProperties()["failures"])
		if c.times[message.GetMessageId()] <= failures {
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	made, err := rocketmq.NewPushConsumer(configuration(a), rocketmq.WithPushSubscriptionExpressions(chosen),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: consume}))
	if err != nil {
		return nil, err
	}
	c.stop = made.GracefulStop
	if err := made.Start(); err != nil {
		return nil, err
	}
	return opened(c), nil
}

func receivedSoFar(a arguments) (any, error) {
	c := clients[a.Handle]
	c.lock.Lock()
	defer c.lock.Unlock()
	return append([]received{}, c.received...), nil
}

func simple(a arguments) (any, error) {
	chosen, err := expressions(a)
	if err != nil {
		return nil, err
	}
	made, err := rocketmq.NewSimpleConsumer(configuration(a), rocketmq.WithSimpleSubscriptionExpressions(chosen),
		rocketmq.WithSimpleAwaitDuration(time.Duration(a.WaitMs)*time.Millisecond))
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	return opened(&client{simple: made, stop: made.GracefulStop}), nil
}

func receive(a arguments) (any, error) {
	invisible := time.Duration(a.InvisibleMs) * time.Millisecond
	found, err := clients[a.Handle].simple.Receive(context.Background(), a.Count, invisible)
	if err != nil && codeOf(err) == int32(v2.Code_MESSAGE_NOT_FOUND) { // an error in this client
		return []received{}, nil
	}
	if err != nil {
		return nil, err
	}
	all := []received{}
	for _, message := range found {
		messages[message.GetMessageId()] = message
		all = append(all, described(message))
	}
	return all, nil
}

func ack(a arguments) (any, error) {
	return nil, clients[a.Handle].simple.Ack(context.Background(), messages[a.ID])
}

func change(a arguments) (any, error) {
	invisible := time.Duration(a.InvisibleMs) * time.Millisecond
	return nil, clients[a.Handle].simple.ChangeInvisibleDuration(messages[a.ID], invisible)
}

// shut closes in the background, which takes a client some seconds.
func shut(a arguments) (any, error) {
	go func() {
		if err := clients[a.Handle].stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return nil, nil
}
