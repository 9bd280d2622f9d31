// The official Go client, as a program that does one thing and prints JSON.
//
//	client send     -namesrv HOST:PORT -topic T < messages.json
//	client consume  -namesrv HOST:PORT -topic T -group G -expression E -count N -timeout 20s
//	client transact -namesrv HOST:PORT -topic T -group G -count CHECKS < halves.json
//	client request  -namesrv HOST:PORT -topic T -group G < body
//	client reply    -namesrv HOST:PORT -topic T -group G, until its input ends
//
// Messages have the form that the Java programs use; bodies are base64. Nothing is judged here.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	namesrv, topic, group, expression string
	count, failures, level, timesMax  int
	orderly, sql                      bool
	timeout                           time.Duration
}

type outgoing struct {
	Body       []byte            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
	Flag       int32             `json:"flag"`
	Level      int               `json:"level"`
}

type sendReport struct {
	Status      string `json:"status"`
	MsgID       string `json:"msgId"`
	OffsetMsgID string `json:"offsetMsgId"`
	QueueID     int    `json:"queueId"`
	QueueOffset int64  `json:"queueOffset"`
}

type received struct {
	Topic          string            `json:"topic"`
	QueueID        int               `json:"queueId"`
	QueueOffset    int64             `json:"queueOffset"`
	PhysicalOffset int64             `json:"physicalOffset"`
	StoreSize      int32             `json:"storeSize"`
	Flag           int32             `json:"flag"`
	SysFlag        int32             `json:"sysFlag"`
	BornTimestamp  int64             `json:"bornTimestamp"`
	StoreTimestamp int64             `json:"storeTimestamp"`
	ReconsumeTimes int32             `json:"reconsumeTimes"`
	MsgID          string            `json:"msgId"`
	OffsetMsgID    string            `json:"offsetMsgId"`
	Body           []byte            `json:"body"`
	Properties     map[string]string `json:"properties"`
}

func main() {
	rlog.SetLogLevel("error")
	var o options
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	flags.StringVar(&o.namesrv, "namesrv", "", "name server, HOST:PORT")
	flags.StringVar(&o.topic, "topic", "", "topic")
	flags.StringVar(&o.group, "group", "interop_go", "group")
	flags.StringVar(&o.expression, "expression", "*", "tags to subscribe to, or SQL")
	flags.BoolVar(&o.sql, "sql", false, "whether the expression is SQL")
	flags.BoolVar(&o.orderly, "orderly", false, "whether each queue is consumed in order")
	flags.IntVar(&o.failures, "failures", 0, "how often each message fails")
	flags.IntVar(&o.level, "level", 0, "delay level of a message that fails")
	flags.IntVar(&o.timesMax, "times-max", -1, "how often it is consumed again")
	flags.IntVar(&o.count, "count", 0, "messages, or checks of transactions, to wait for")
	flags.DurationVar(&o.timeout, "timeout", 20*time.Second, "how long to wait for them")
	commands := map[string]func(options) (any, error){
		"send": send, "consume": consume, "transact": transact, "request": request, "reply": reply,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fail(fmt.Errorf("usage: client send|consume|transact|request|reply OPTIONS"))
	}
	if err := flags.Parse(os.Args[2:]); err != nil {
		fail(err)
	}
	result, err := commands[os.Args[1]](o)
	if err != nil {
		fail(err)
	}
	if result == nil {
		return
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func send(o options) (any, error) {
	var messages []outgoing
	if err := json.NewDecoder(os.Stdin).Decode(&messages); err != nil {
		return nil, err
	}
	client, err := startProducer(o, o.group)
	if err != nil {
		return nil, err
	}
	reports := []sendReport{}
	for _, m := range messages {
		result, err := client.SendSync(context.Background(), m.message(o.topic))
		if err != nil {
			return nil, err
		}
		reports = append(reports, report(result))
	}
	return reports, client.Shutdown()
}

func startProducer(o options, group string) (rocketmq.Producer, error) {
	client, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{o.namesrv}),
		producer.WithGroupName(group))
	if err != nil {
		return nil, err
	}
	return client, client.Start()
}

func (m outgoing) message(topic string) *primitive.Message {
	message := primitive.NewMessage(topic, m.Body)
	message.Flag = m.Flag
	message.WithProperties(m.Properties)
	if m.Tags != "" {
		message.WithTag(m.Tags)
	}
	if m.Keys != "" {
		message.WithKeys(strings.Fields(m.Keys))
	}
	if m.Level != 0 {
		message.WithDelayTimeLevel(m.Level)
	}
	return message
}

func report(r *primitive.SendResult) sendReport {
	status := "OTHER"
	if r.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return sendReport{status, r.MsgID, r.OffsetMsgID, r.MessageQueue.QueueId, r.QueueOffset}
}

const settledFor = 500 * time.Millisecond

// consume returns what arrived when there are enough messages or the time is over.
func consume(o options) (any, error) {
	arrived := make(chan received, 1024)
	client, err := startConsumer(o, failing(o, arrived))
	if err != nil {
		return nil, err
	}
	messages := collect(arrived, o.count, o.timeout)
	settle(client, o.topic, o.timeout)
	err = client.Shutdown()
	return append(messages, drain(arrived)...), err
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func startConsumer(o options, listener listener) (rocketmq.PushConsumer, error) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{o.namesrv}),
		consumer.WithGroupName(o.group),
		consumer.WithConsumerOrder(o.orderly),
		consumer.WithMaxReconsumeTimes(int32(o.timesMax)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.expression}
	if o.sql {
		selector.Type = consumer.SQL92
	}
	if err := client.Subscribe(o.topic, selector, listener); err != nil {
		return nil, err
	}
	return client, client.Start()
}

// failing tells of all messages that come, and fails each as often as is asked for.
func failing(o options, arrived chan<- received) listener {
	var lock sync.Mutex
	failures := map[string]int{}
	return func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			arrived <- view(message)
			if failures[message.MsgId] < o.failures {
				failures[message.MsgId]++
				result = consumer.ConsumeRetryLater
			}
		}
		if result == consumer.ConsumeRetryLater {
			if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrent.DelayLevelWhenNextConsume = o.level
			}
			if o.orderly {
				result = consumer.SuspendCurrentQueueAMoment
			}
		}
		return result, nil
	}
}

func collect(arrived <-chan received, count int, timeout time.Duration) []received {
	messages := []received{}
	deadline := time.After(timeout)
	for len(messages) < count {
		select {
		case message := <-arrived:
			messages = append(messages, message)
		case <-deadline:
			return messages
		}
	}
	return messages
}

// settle waits until the client has noted every message as done: it does so only after the
// listener has returned, and Shutdown commits no more than what is noted. A queue of which nothing
// is noted yet does not count in the difference, so that has to stay zero for a while.
func settle(client rocketmq.PushConsumer, topic string, timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	quiet := time.Now()
	for time.Since(quiet) < settledFor && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		if client.GetOffsetDiffMap()[topic] > 0 {
			quiet = time.Now()
		}
	}
}

func drain(arrived <-chan received) []received {
	messages := []received{}
	for len(arrived) > 0 {
		messages = append(messages, <-arrived)
	}
	return messages
}

func view(m *primitive.MessageExt) received {
	return received{
		Topic:          m.Topic,
		QueueID:        m.Queue.QueueId,
		QueueOffset:    m.QueueOffset,
		PhysicalOffset: m.CommitLogOffset,
		StoreSize:      m.StoreSize,
		Flag:           m.Flag,
		SysFlag:        m.SysFlag,
		BornTimestamp:  m.BornTimestamp,
		StoreTimestamp: m.StoreTimestamp,
		ReconsumeTimes: m.ReconsumeTimes,
		MsgID:          m.MsgId,
		OffsetMsgID:    m.OffsetMsgId,
		Body:           m.Body,
		Properties:     m.GetProperties(),
	}
}
