package interop;

import com.alibaba.fastjson2.JSONObject;

/** What a request names: it takes the request's arguments and gives a value that JSON can carry. */
@FunctionalInterface
interface Operation {
    Object run(JSONObject arguments) throws Exception;
}
